/** One step of the model, looked into: what each layer computed, and the likeliest next tokens. */

import { newDialog, styled } from "./dialog.mjs";
import { element } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./client.mjs").Octavo} Octavo
 * @typedef {import("./client.mjs").Inspection} Inspection
 * @typedef {Inspection["calls"][number]} Call
 * @typedef {"rms" | "low" | "high" | "mean" | "not_finite"} Value
 * @typedef {() => {role: string, content: string}[]} Conversation the open one, as the model gets it
 */

/** The values of a tensor, and their strings. @type {Record<Value, string>} */
const NAMES = {
  rms: "inspect_rms",
  low: "inspect_low",
  high: "inspect_high",
  mean: "inspect_mean",
  not_finite: "inspect_not_finite_count",
};
const VALUES = /** @type {Value[]} */ (Object.keys(NAMES));

/**
 * Opens a dialog of its own.
 *
 * @param {Octavo} octavo
 * @param {Conversation} conversation
 */
export async function openInspection(octavo, conversation) {
  const { dialog, body } = newDialog("inspect", "inspect");
  dialog.addEventListener("close", await fillInspection(body, octavo, conversation));
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Fills an element with a prompt's field, a button, and what the model made of it. Resolves, once its
 * style is there, to a function that ends what is under way.
 *
 * @param {HTMLElement} place
 * @param {Octavo} octavo
 * @param {Conversation} conversation
 */
async function fillInspection(place, octavo, conversation) {
  await styled("./inspect.css");
  const form = /** @type {HTMLFormElement} */ (element("form", "inspect-form"));
  const label = element("label", "", t("inspect_prompt"));
  const prompt = document.createElement("textarea");
  const hint = element("p", "hint", t("inspect_prompt_hint"));
  const run = document.createElement("button");
  const status = element("p", "inspect-status");
  const result = element("div");
  Object.assign(prompt, { id: "inspect-prompt", className: "field", rows: 2 });
  Object.assign(run, { type: "submit", className: "quiet strong", textContent: t("inspect_run") });
  hint.id = "inspect-hint";
  label.setAttribute("for", prompt.id);
  prompt.setAttribute("aria-describedby", hint.id);
  status.setAttribute("role", "status");
  const parts = { prompt, run, status, result };
  for (const [name, part] of Object.entries(parts)) part.dataset.testid = `inspect-${name}`;
  form.append(label, prompt, hint, run, status);
  place.replaceChildren(form, result);

  let under = new AbortController();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const messages = asked(prompt.value.trim(), conversation());
    if (!messages.length) {
      status.textContent = t("inspect_nothing");
      return prompt.focus();
    }
    under = new AbortController();
    const { signal } = under;
    run.disabled = true;
    status.textContent = t("inspect_running");
    delete status.dataset.code;
    result.replaceChildren();
    try {
      const inspection = await octavo.inspect({ messages, signal });
      status.textContent = summary(inspection);
      result.append(likeliest(inspection), layers(inspection));
    } catch (error) {
      const { code = "internal", message, hint = "" } = /** @type {any} */ (error);
      status.textContent = `${message} ${hint}`;
      status.dataset.code = code;
    } finally {
      run.disabled = false;
    }
  });
  return () => under.abort();
}

/**
 * A prompt; without one the open conversation, where its last answer begins.
 *
 * @param {string} prompt
 * @param {{role: string, content: string}[]} conversation
 */
function asked(prompt, conversation) {
  if (prompt) return [{ role: "user", content: prompt }];
  const last = conversation.findLastIndex(({ role }) => role === "user");
  return conversation.slice(0, last + 1);
}

/** @param {Inspection} inspection */
function summary({ tokens, token, calls }) {
  const bad = calls.filter(({ not_finite }) => not_finite);
  const step = t("inspect_step", { tokens: number(tokens), token: quoted(token) });
  if (!bad.length) return `${step} ${t("inspect_all_finite")}`;
  const count = bad.reduce((sum, { not_finite }) => sum + not_finite, 0);
  const { layer, name } = bad[0];
  const where = layer === null ? name : `${t("inspect_layer")} ${number(layer)}, ${name}`;
  return `${step} ${t("inspect_not_finite", { count: number(count), where })}`;
}

/**
 * The likeliest tokens as bars.
 *
 * @param {Inspection} inspection
 */
function likeliest({ top }) {
  const section = element("section", "inspect-part");
  const table = element("table", "inspect-top");
  table.dataset.testid = "inspect-top";
  table.append(element("caption", "", t("inspect_next")));
  table.append(headRow([t("inspect_token"), t("inspect_probability"), "", t("inspect_logit")]));
  const body = element("tbody");
  for (const { text, logit, probability } of top) {
    const row = element("tr");
    const name = element("th");
    name.setAttribute("scope", "row");
    name.append(element("code", "", quoted(text)));
    const share = element("td", "", number(probability, { style: "percent", maximumFractionDigits: 1 }));
    const drawn = element("td", "inspect-bar");
    drawn.setAttribute("aria-hidden", "true");
    const bar = element("span");
    bar.style.width = `${100 * probability}%`;
    drawn.append(bar);
    row.append(name, share, drawn, element("td", "", short(logit)));
    body.append(row);
  }
  table.append(body);
  const scroll = scrolled(t("inspect_next"));
  scroll.append(table);
  section.append(scroll);
  return section;
}

/** For what may be wider than a phone. @param {string} name */
function scrolled(name) {
  const area = element("div", "inspect-scroll");
  area.setAttribute("role", "region");
  area.setAttribute("aria-label", name);
  area.tabIndex = 0;
  return area;
}

/**
 * What the layers computed: a row for each, a column for each tensor; colours show one value of it.
 *
 * @param {Inspection} inspection
 */
function layers({ calls, layers: count }) {
  const section = element("section", "inspect-part");
  const label = element("label", "", t("inspect_show"));
  const choice = document.createElement("select");
  choice.id = "inspect-value";
  choice.className = "field";
  choice.dataset.testid = "inspect-value";
  choice.append(...VALUES.map((value) => new Option(t(NAMES[value]), value)));
  label.setAttribute("for", choice.id);
  const row = element("p", "inspect-choice");
  row.append(label, choice);

  const scroll = scrolled(t("inspect_layers"));
  const columns = columnsOf(calls);
  const show = () =>
    scroll.replaceChildren(heat(calls, count, columns, /** @type {Value} */ (choice.value)));
  choice.addEventListener("change", show);
  show();
  section.append(row, scroll);
  return section;
}

/**
 * The tensors of a layer in order; a name that a layer has twice is two columns.
 *
 * @param {Call[]} calls
 */
function columnsOf(calls) {
  const columns = new Set(calls.flatMap((call) => (call.layer === null ? [] : [keyOf(call, calls)])));
  return [...columns];
}

/**
 * @param {Call} call
 * @param {Call[]} calls
 */
function keyOf(call, calls) {
  const { layer, name } = call;
  const same = calls.filter((other) => other.layer === layer && other.name === name);
  const place = same.indexOf(call);
  return place ? `${name} ${place + 1}` : name;
}

/**
 * @param {Call[]} calls
 * @param {number} count of layers
 * @param {string[]} columns
 * @param {Value} value
 */
function heat(calls, count, columns, value) {
  const table = element("table", "inspect-heat");
  table.dataset.testid = "inspect-heat";
  table.append(element("caption", "", t("inspect_layers")));
  table.append(headRow([t("inspect_layer"), ...columns]));
  const scale = scaleOf(calls.map((call) => Math.abs(call[value])));
  const body = element("tbody");
  const outside = calls.filter(({ layer }) => layer === null);
  const first = calls.findIndex(({ layer }) => layer !== null);
  const before = outside.filter((call) => calls.indexOf(call) < first);
  for (const call of before) body.append(wideRow(call));
  for (let layer = 0; layer < count; layer++) {
    const row = element("tr");
    row.append(rowHead(number(layer)));
    const own = new Map(calls.flatMap((call) => (call.layer === layer ? [[keyOf(call, calls), call]] : [])));
    row.append(...columns.map((column) => cellOf(own.get(column), value, scale)));
    body.append(row);
  }
  for (const call of outside) if (!before.includes(call)) body.append(wideRow(call));
  table.append(body);
  return table;

  /** @param {Call} call outside of the layers */
  function wideRow(call) {
    const row = element("tr");
    const cell = cellOf(call, value, scale);
    cell.setAttribute("colspan", String(columns.length));
    row.append(rowHead(call.name), cell);
    return row;
  }
}

/**
 * From 0 to 100 by the logarithm, for these values differ by orders of magnitude.
 *
 * @param {number[]} values
 * @returns {(value: number) => number}
 */
function scaleOf(values) {
  const logs = values.filter((value) => value > 0).map(Math.log);
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  return (value) => (value > 0 ? 10 + 90 * (high > low ? (Math.log(value) - low) / (high - low) : 1) : 0);
}

/**
 * @param {Call | undefined} call
 * @param {Value} value
 * @param {(value: number) => number} scale
 */
function cellOf(call, value, scale) {
  const cell = element("td");
  if (!call) return cell;
  cell.textContent = short(call[value]);
  cell.style.setProperty("--heat", `${scale(Math.abs(call[value])).toFixed(0)}%`);
  const lines = VALUES.map((name) => `${t(NAMES[name])}: ${short(call[name])}`);
  cell.title = [call.kernel, ...lines].join("\n");
  if (call.not_finite) {
    cell.dataset.bad = String(call.not_finite);
    if (value !== "not_finite") cell.textContent += " ⚠";
  }
  return cell;
}

/** @param {string[]} names */
function headRow(names) {
  const head = element("thead");
  const row = element("tr");
  for (const name of names) {
    const cell = element(name ? "th" : "td", "", name);
    if (name) cell.setAttribute("scope", "col");
    row.append(cell);
  }
  head.append(row);
  return head;
}

/** @param {string} text */
function rowHead(text) {
  const cell = element("th", "", text);
  cell.setAttribute("scope", "row");
  return cell;
}

/** A token's text, in which spaces and line ends can be seen. @param {string} text */
function quoted(text) {
  return JSON.stringify(text);
}

/** @param {number} value */
function short(value) {
  return number(value, { maximumSignificantDigits: 3 });
}
