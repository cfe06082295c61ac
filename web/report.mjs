/** What the bench pages show and report: rows of a table, progress, POSTs to a runner's `/log`. */

import { byId, element } from "./dom.mjs";

/**
 * @typedef {object} Row one figure
 * @property {string} id stable
 * @property {string} label
 * @property {number} value
 * @property {string} unit
 * @property {string} [note]
 */

export const address = new URLSearchParams(location.search);
export const reports = address.get("report") === "1";
/** @type {Row[]} */
export const rows = [];

/** @param {number[]} values */
export function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** @param {number[]} values */
export function spread(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(digits);
  return values.length === 1 ? "one run" : `${values.length} runs, ${low} to ${high}`;
}

/**
 * Three digits that count, without an exponent.
 *
 * @param {number} value
 */
export function digits(value) {
  if (Number.isInteger(value) || Math.abs(value) >= 100) return value.toFixed(0);
  return value.toPrecision(3);
}

/** @param {number} started of performance.now() */
export function secondsSince(started) {
  return (performance.now() - started) / 1000;
}

/**
 * @param {string} id
 * @param {string} label
 * @param {number} value
 * @param {string} unit
 * @param {string} [note]
 */
export function add(id, label, value, unit, note = "") {
  rows.push({ id, label, value, unit, note });
  const row = document.createElement("tr");
  row.append(element("th", "", label), element("td", "value", digits(value)),
    element("td", "", unit), element("td", "note", note));
  byId("rows").append(row);
}

/**
 * Measures when the button is pressed, or at once if the address says so, and reports the result.
 *
 * @param {() => Promise<object>} measure
 * @param {object} [anyway] what is reported beside an error
 */
export function whenStarted(measure, anyway = {}) {
  const button = /** @type {HTMLButtonElement} */ (byId("start"));
  const run = async () => {
    button.disabled = true;
    /** @type {object} */
    let result;
    try {
      result = await measure();
      await say("Done.");
    } catch (error) {
      const { name, code, message } = /** @type {any} */ (error);
      result = { error: { code: code ?? name ?? "unknown", message: message ?? String(error) }, ...anyway };
      await say(`Failed: ${message ?? error}`);
    }
    Object.assign(window, { benchResult: result });
    await post(result);
    await post({ done: 1 });
  };
  button.addEventListener("click", run);
  if (reports || address.get("start") === "1") run();
}

/** @param {string} text */
export async function say(text) {
  byId("status").textContent = text;
  console.info(`bench: ${text}`);
  await post({ progress: text, at_s: Number((performance.now() / 1000).toFixed(1)) });
}

/** @param {object} body */
export async function post(body) {
  if (!reports) return;
  const headers = { "content-type": "application/json" };
  await fetch("/log", { method: "POST", headers, body: JSON.stringify(body) });
}
