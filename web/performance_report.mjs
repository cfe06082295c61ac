/** Everything that the panel shows as one text, for a report of a bug. In English, whatever the
 * page's language is; of conversations it has lengths and times, no text. */

import { VERSION } from "./worker/version.mjs";

/**
 * @typedef {object} Facts
 * @property {import("./client.mjs").Status} status
 * @property {import("./records.mjs").Records} records
 * @property {import("./settings.mjs").Settings} settings
 * @property {import("./client.mjs").Measurement | null} measured
 */

/** Settings of a load that are addresses, which may name what is nobody's business. */
const PRIVATE = ["model", "remote"];

/** @param {Facts} facts */
export function reportOf({ status, records, settings, measured }) {
  const lines = [
    "Octavo, performance",
    `version: ${VERSION}`,
    `time: ${new Date().toISOString()}`,
    `browser: ${navigator.userAgent}`,
    `language: ${navigator.language}`,
    `window: ${innerWidth} x ${innerHeight}, ${devicePixelRatio} pixels each`,
    `processors: ${navigator.hardwareConcurrency}`,
    `state: ${status.state}`,
    ...modelLines(status),
    `settings of the load: ${loadSettings(settings)}`,
    ...listed("memory, bytes", Object.entries(status.memory ?? {}).map(([label, bytes]) => `${label}: ${bytes}`)),
    ...listed("KV cache", Object.entries(status.kv ?? {}).map(([name, value]) => `${name}: ${value}`)),
    ...listed("answers, the last one last", records.answers.map(answerLine)),
    ...kernelLines(measured),
    ...listed("errors", records.errors.map(errorLine)),
  ];
  return `${lines.join("\n")}\n`;
}

/** @param {Facts["status"]} status */
function modelLines({ device, model }) {
  if (!device || !model) return ["model: none"];
  const { kind, software, activations } = device;
  const name = kind === "remote" ? "a server" : device.name;
  return [
    `device: ${kind}, ${name}${software ? ", software" : ""}, activations ${activations}`,
    `model: ${model.name}, ${model.architecture}, ${model.parameters} parameters, ` +
      `${model.bytes} bytes, context ${model.context}`,
  ];
}

/** @param {Facts["settings"]} settings */
function loadSettings(settings) {
  const all = { ...settings.load, ...settings.addressLoad };
  const shown = Object.entries(all).map(([name, value]) => `${name}=${PRIVATE.includes(name) ? "given" : value}`);
  return shown.join(" ") || "none";
}

/** @param {import("./records.mjs").AnswerRecord} answer */
function answerLine({ model, prompt_tokens, cached_tokens, completion_tokens, finish, timing }) {
  const { ttft_ms, queue_ms, prefill_ms, first_step_ms, decode_tokens_per_s } = timing;
  const parts = [["queue", queue_ms], ["prefill", prefill_ms], ["first step", first_step_ms]];
  const told = parts.flatMap(([name, ms]) => (ms == null ? [] : `${name} ${rounded(Number(ms))}`));
  return `${model}: prompt ${prompt_tokens} (${cached_tokens} cached), answer ${completion_tokens} (${finish}); ` +
    `first token ${rounded(ttft_ms)} ms${told.length ? ` (${told.join(", ")})` : ""}; ` +
    `${rounded(decode_tokens_per_s)} tokens/s`;
}

/** @param {Facts["measured"]} measured */
function kernelLines(measured) {
  if (!measured) return ["kernels: not measured"];
  return Object.entries(measured.kernels).flatMap(([plan, rows]) =>
    listed(`kernels of ${plan}`, rows.map(([label, count, ms]) => `${label}: ${count} in ${rounded(ms)} ms`)));
}

/** @param {{code: string, at: number}} error */
function errorLine({ code, at }) {
  return `${code}, ${Math.round((performance.now() - at) / 1000)} s ago`;
}

/**
 * @param {string} title
 * @param {string[]} items
 */
function listed(title, items) {
  return items.length ? [`${title}:`, ...items.map((item) => `  ${item}`)] : [`${title}: none`];
}

/** @param {number} value */
function rounded(value) {
  return Number(value.toPrecision(4));
}
