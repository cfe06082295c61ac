/**
 * Types a text into the editor as a person does, and measures how soon proposals come and go.
 *
 * Address parameters: `model` and `device` as for `load`; `rate` (keys a second; 12) and `keys`
 * (how many; 240). The result is a line of JSON: on the page, on the console after `bench: `, and in
 * `window.benchResult`. Times are in milliseconds, each with its count and its percentiles 50 and 95:
 * `first_ms` from a keystroke to the first token of its proposal, `token_ms` between tokens after
 * it; `cancelled_ms` from a keystroke to the end of the completion that it cancels, and
 * `first_behind_ms` to the first token of the next one, which waits for that. The last two come from
 * a second round, in which completions are so long that they are always under way. `computed` is how
 * many tokens of a prompt were not found in the KV cache.
 */

import { EditorView, minimalSetup } from "codemirror";
import { Octavo } from "octavo";

import { proposals } from "./proposals.mjs";

const TEXT = "The old lighthouse stands alone on the rock, and every evening its keeper climbs the " +
  "stairs to light the lamp. Ships far out at sea look for it when the fog comes in. Nobody knows " +
  "how long it has been there, but the people of the village say that it was built ";
const WARM_KEYS = 12; // not counted: kernels and paces are learned
const LONG = { max_tokens: 400, stop: undefined }; // what a completion of the second round is like

const address = new URLSearchParams(location.search);
const keys = Number(address.get("keys") ?? 240);
const pause_ms = 1000 / Number(address.get("rate") ?? 12);
const status = document.querySelector("[role=status]");
/** @type {Record<string, number[]>} */
const samples = { first_ms: [], token_ms: [], cancelled_ms: [], first_behind_ms: [], computed: [] };
let pressed = 0; // when the last key was
let counts = false; // what is asked for now
let isLong = false;

try {
  report(await measure());
} catch (error) {
  report({ error: { code: error.code ?? error.name, message: error.message } });
}

async function measure() {
  const octavo = new Octavo({ workerUrl: "/octavo/worker/worker.mjs" });
  const model = address.get("model") ?? "/model.gguf";
  const { device, model: { name } } = await octavo.load({ model, device: address.get("device") ?? "auto" });
  const view = new EditorView({
    parent: document.querySelector("main"),
    extensions: [proposals(watched(octavo)), minimalSetup, EditorView.lineWrapping],
  });
  view.focus();
  status.textContent = `Typing, on ${device.name}`;
  await type(view, WARM_KEYS);
  counts = true;
  await type(view, keys);
  isLong = true;
  await type(view, keys / 4);
  view.destroy();
  octavo.close();
  const figures = Object.entries(samples).map(([label, values]) => [label, percentiles(values)]);
  return { device, model: name, keys, rate: 1000 / pause_ms, ...Object.fromEntries(figures) };
}

/** @param {EditorView} view @param {number} count of keys */
async function type(view, count) {
  for (let i = 0; i < count; i++) {
    press(view, TEXT[view.state.doc.length % TEXT.length]);
    await new Promise((resolve) => setTimeout(resolve, pause_ms));
  }
}

/** @param {EditorView} view @param {string} text */
function press(view, text) {
  pressed = performance.now();
  const from = view.state.doc.length;
  const selection = { anchor: from + text.length };
  view.dispatch({ changes: { from, insert: text }, selection, userEvent: "input.type" });
}

/**
 * The client as the editor sees it, with a look at each completion's times.
 *
 * @param {Octavo} octavo
 */
function watched(octavo) {
  const create = (request) => {
    const asked = isLong ? { ...request, ...LONG } : request;
    const firsts = isLong ? samples.first_behind_ms : samples.first_ms;
    const stream = octavo.completions.create(asked);
    return counts ? watch(stream, request.signal, firsts) : stream;
  };
  return { completions: { create } };
}

/**
 * @param {AsyncIterable<import("octavo").TextCompletionChunk>} stream
 * @param {AbortSignal} signal
 * @param {number[]} firsts
 */
async function* watch(stream, signal, firsts) {
  const started = pressed;
  let [first, last, tokens, aborted] = [0, 0, 0, 0];
  signal.addEventListener("abort", () => (aborted = pressed));
  try {
    for await (const chunk of stream) {
      const { num_tokens } = chunk.octavo;
      if (num_tokens > tokens) [tokens, last] = [num_tokens, performance.now()];
      if (tokens && !first) firsts.push((first = last) - started);
      const { prompt_tokens, cached_tokens } = chunk.usage ?? {};
      if (chunk.usage && !aborted) samples.computed.push(prompt_tokens - cached_tokens);
      yield chunk;
    }
  } finally {
    if (aborted) samples.cancelled_ms.push(performance.now() - aborted);
    if (last > first) samples.token_ms.push((last - first) / (tokens - 1));
  }
}

/** @param {number[]} values */
function percentiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  return sorted.length ? { count: sorted.length, p50: at(0.5), p95: at(0.95) } : { count: 0 };
}

/** @param {object} result */
function report(result) {
  const line = JSON.stringify(result, (_, value) =>
    typeof value === "number" ? Number(value.toFixed(2)) : value);
  status.textContent = result.error ? "It failed." : "Done.";
  document.querySelector("pre").textContent = line;
  console.info(`bench: ${line}`);
  Object.assign(window, { benchResult: JSON.parse(line) });
}
