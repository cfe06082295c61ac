/**
 * One way of measuring for every engine: prompts of exact lengths go in, and what counts is when
 * their tokens reach the page. `bench.html?engine=...` uses it; an engine is a file beside this one
 * with a function `load`.
 */

import { seeded } from "../seeded.mjs"; // of the site, beside which this folder lies

/**
 * @typedef {object} Model where the same weights lie in both forms
 * @property {string} id
 * @property {string} folder address, with a closing slash: manifest.json and shards (GGUF), and
 *   config.json and onnx/ (ONNX)
 * @property {{name: string}[]} shards of the GGUF file, in order
 *
 * @typedef {object} Options
 * @property {Model} model
 * @property {string} device "gpu" or "cpu"
 * @property {number} context tokens to have room for
 * @property {number | undefined} threads on the CPU; absent: as many as the engine likes
 * @property {string | undefined} graph name of an ONNX graph
 *
 * @typedef {object} Prompt the same number of tokens in both forms: engines take one or the other
 * @property {number[]} ids
 * @property {string[]} words each a single token of SmolLM2's vocabulary
 *
 * @typedef {object} Engine
 * @property {string} name with its version, and its setting where it is measured with several
 * @property {string} device that it computes on, in words
 * @property {boolean} onCpu
 * @property {string} note its settings, in words
 * @property {number} vocabulary tokens
 * @property {(prompt: Prompt, count: number) => Promise<number[]>} [generate] greedily `count`
 *   tokens, from an empty cache; when each reached the page, as of performance.now()
 * @property {(text: string) => Promise<{tokens: number, ms: number}>} [encode] of a text, the
 *   number of its tokens, and how long it took to find them
 *
 * @typedef {(options: Options) => Promise<Engine>} Load what an engine's file exports as `load`
 *
 * @typedef {object} Sizes
 * @property {number[]} contexts where decoding is measured, tokens
 * @property {number} prefill tokens
 * @property {number} steps tokens decoded at a time
 * @property {number} skipped of them, at the beginning
 * @property {number} runs most repetitions of each measurement
 * @property {number} seconds after which a measurement is not repeated
 *
 * @typedef {(id: string, label: string, value: number, unit: string, note?: string) => void} Add
 */

/** @type {Sizes} */
const FULL = { contexts: [64, 1024], prefill: 512, steps: 128, skipped: 8, runs: 5, seconds: 6 };
/** @type {Sizes} */
const QUICK = { contexts: [64], prefill: 64, steps: 12, skipped: 2, runs: 3, seconds: 6 };
const FIRST = 32; // tokens of the prompt that time to first token is measured with
const FIRST_TEXT = 2000; // the seed of the texts that are tokenized
const TRIES = 4; // prompts, where an answer ends too early to be measured
const WORDS = (
  "the of and to in is that for it as was with be by on not he are this at from but have an they " +
  "which or we one all their were there been has when who will more no if out so said what up its"
).split(" ");
const ORDINARY = 300; // ids below are bytes and control tokens

/**
 * @typedef {object} Page
 * @property {boolean} quick
 * @property {(text: string) => Promise<void>} say
 * @property {Add} add
 * @property {(seed: number) => string} makeText
 */

/**
 * @param {Engine} engine
 * @param {Page} page
 */
export async function measureEngine(engine, page) {
  const { encode, generate } = engine;
  if (encode) await measureEncoding(engine.name, encode, page);
  if (generate) await measureAnswers(engine, generate, page);
}

/**
 * @param {string} name
 * @param {NonNullable<Engine["encode"]>} encode
 * @param {Page} page
 */
async function measureEncoding(name, encode, { quick, say, add, makeText }) {
  await say(`${name}: tokenizing`);
  await encode(makeText(FIRST_TEXT - 1)); // compiles JavaScript
  let seed = FIRST_TEXT;
  const rates = await repeat(quick ? QUICK : FULL, async () => {
    const { tokens, ms } = await encode(makeText(seed++));
    return (tokens / ms) * 1000;
  });
  add("tokenize", "text to tokens", median(rates), "tokens/s", spread(rates));
}

/**
 * @param {Engine} engine
 * @param {NonNullable<Engine["generate"]>} answer
 * @param {Page} page
 */
async function measureAnswers(engine, answer, { quick, say, add }) {
  const sizes = quick ? QUICK : FULL;
  let seed = 0;
  const generate = async (/** @type {number} */ length, /** @type {number} */ count) => {
    const asked = performance.now();
    const times = await answer(makePrompt(length, engine.vocabulary, ++seed), count);
    return times.map((time) => time - asked);
  };
  const first = async (/** @type {number} */ length) => (await generate(length, 1))[0];

  await say(`${engine.name}: warming up`);
  await generate(FIRST, quick ? 2 : sizes.steps);
  await say(`${engine.name}: time to first token`);
  const ttft = await repeat(sizes, () => first(FIRST));
  add(`ttft_${FIRST}`, `time to first token, ${FIRST} tokens`, median(ttft), "ms", spread(ttft));

  await say(`${engine.name}: prefill of ${sizes.prefill} tokens`);
  if (!quick) await first(sizes.prefill);
  const waits = await repeat(sizes, () => first(sizes.prefill));
  const rates = waits.map((wait) => (sizes.prefill / wait) * 1000);
  add(`prefill_${sizes.prefill}`, `prefill, ${sizes.prefill} tokens`, median(rates), "tokens/s",
    spread(rates));

  for (const context of sizes.contexts) {
    await say(`${engine.name}: decode at context ${context}`);
    if (!quick) await generate(context, 6);
    const decode = () => decodeRate(() => generate(context, sizes.steps), sizes);
    const found = await repeat(sizes, decode);
    add(`decode_${context}`, `decode, context ${context}`, median(found), "tokens/s",
      `up to ${sizes.steps} tokens; ${spread(found)}`);
  }
}

/**
 * Tokens a second over the tokens after the first few.
 *
 * @param {() => Promise<number[]>} answer
 * @param {Sizes} sizes
 */
async function decodeRate(answer, { steps, skipped }) {
  /** @type {number[]} */
  let times = [];
  for (let i = 0; i < TRIES && times.length < steps; i++) {
    const others = await answer(); // a model that may end its answer may do so early
    if (others.length > times.length) times = others;
  }
  // where several tokens come at once, time runs from the last of them
  const from = times.lastIndexOf(times[skipped]);
  const tokens = times.length - 1 - from;
  if (times.length <= skipped || tokens === 0) throw new Error("All answers ended too early.");
  return (tokens / (times[times.length - 1] - times[from])) * 1000;
}

/**
 * A prompt that is the same for every engine, and never begins as another one did.
 *
 * @param {number} length tokens
 * @param {number} vocabulary
 * @param {number} seed
 * @returns {Prompt}
 */
export function makePrompt(length, vocabulary, seed) {
  const random = seeded(seed);
  const ids = Array.from({ length }, () => ORDINARY + random(vocabulary - 2 * ORDINARY));
  const words = Array.from({ length }, () => WORDS[random(WORDS.length)]);
  return { ids, words };
}

/**
 * The model that the page's address names, as `Octavo.load` takes it: by catalogue id, or by the
 * address of its manifest.
 *
 * @param {string | null} name absent: the catalogue's default
 * @returns {Promise<Model>}
 */
export async function findModel(name) {
  const catalogue = await fetchJson("models.json");
  const wanted = name ?? catalogue.default;
  const entry = catalogue.models.find((/** @type {{id: string}} */ { id }) => id === wanted);
  const manifest = new URL(entry?.address ?? wanted, location.href);
  const folder = new URL(".", manifest).href;
  const { shards } = await fetchJson(manifest);
  return { id: /** @type {string} */ (folder.split("/").at(-2)), folder, shards };
}

/** @param {string | URL} address */
async function fetchJson(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status}`);
  return response.json();
}

/** @returns {Promise<GPUAdapter | null>} */
async function findAdapter() {
  return (await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" })) ?? null;
}

/** The GPU in words, or an empty string where there is none. */
export async function describeGpu() {
  const adapter = await findAdapter();
  if (!adapter) return "";
  const { vendor, architecture, description } = adapter.info;
  return `WebGPU, ${[vendor, architecture, description].filter(Boolean).join(" ")}`;
}

/** Whether full sizes would take too long here: no GPU, or one that the CPU computes. */
export async function isSlow() {
  const adapter = await findAdapter();
  return !adapter || adapter.info.isFallbackAdapter || adapter.info.architecture === "swiftshader";
}

/**
 * @template T
 * @param {Sizes} sizes
 * @param {() => Promise<T>} measure
 */
async function repeat({ runs, seconds }, measure) {
  const end = performance.now() + seconds * 1000;
  const all = [];
  do all.push(await measure());
  while (all.length < runs && performance.now() < end);
  return all;
}

/** @param {number[]} values */
function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** @param {number[]} values */
function spread(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map((v) => v.toPrecision(4));
  return values.length === 1 ? "one run" : `${values.length} runs, ${low} to ${high}`;
}
