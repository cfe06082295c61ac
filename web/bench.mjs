/**
 * The bench page: measures with the public client what a visitor of the site feels.
 *
 * Address parameters: `device`, `activations`, `model`, `context` (of the loaded model) as for the
 * page itself; `tune` (1: measure all kernel variants in the first load, 0: none); `prefill` and `contexts` (token counts, separated by commas); `quick` (1: smaller
 * sizes, 0: full ones; without it slow devices get the smaller ones); `start` (1: do not wait for
 * the button); `report` (1: start, and POST progress, result and an end mark to `/log`).
 *
 * Only in the folder that `build.py bench --peers` makes: `engine` (`octavo`, `wllama`,
 * `transformers`, `onnxruntime` or `tokenizers`; without it `octavo`); `compare` (1: measure Octavo as its peers
 * are, too); `threads` and `graph` for the peers that have a choice.
 *
 * The result is shown as a table and left in `window.benchResult`.
 */

import { measurePaging, measurePool } from "./bench_kv.mjs";
import { measureRecovery } from "./bench_recovery.mjs";
import { measureContinue, measureStops } from "./bench_stops.mjs";
import { encode, makeText, measureTokenizer } from "./bench_text.mjs";
import { Octavo } from "./client.mjs";
import { byId } from "./dom.mjs";
import { add, address, median, rows, say, secondsSince, spread, whenStarted } from "./report.mjs";

/**
 * @typedef {import("./client.mjs").LoadResult} LoadResult
 * @typedef {import("./client.mjs").Measurement} Measurement
 *
 * @typedef {object} Sizes
 * @property {number} warm tokens of the prompt that comes before all
 * @property {number[]} prefill prompt lengths, tokens
 * @property {number[]} contexts where decoding is measured, tokens
 * @property {number} steps most tokens decoded at a time
 * @property {number} runs most repetitions of each measurement
 * @property {number} seconds after which a measurement is not repeated
 * @property {number} stops
 *
 * @typedef {object} Load
 * @property {number} seconds
 * @property {Record<string, number>} stages seconds from the start to the end of each
 * @property {number} uploading seconds from the start until the weights began to come
 * @property {LoadResult} result
 */

/** @type {Sizes} */
const FULL = {
  warm: 512, prefill: [64, 512, 1024], contexts: [64, 1024], steps: 128, runs: 5, seconds: 6,
  stops: 40,
};
const GPU_STEPS = 512; // a GPU that was idle clocks up in the first 100 ms or so
/** @type {Sizes} */
const QUICK = {
  warm: 16, prefill: [64], contexts: [64, 1024], steps: 8, runs: 1, seconds: 0, stops: 3,
};
const MIN_STEPS = 8;
const IDLE_MS = 3000; // after which a GPU has clocked down
const PAGING_ROUNDS = 3; // at least
const LONG = { prefill: 2048, context: 8192, steps: 64 };
const HISTORY_TOKENS = 1000; // about, of the conversation whose second turn is timed
const HISTORY = "The sea is wide, and the old lighthouse stands alone. ".repeat(80);
const SAMPLED = { temperature: 0.8 }; // of the sampled decode row
const EVERYTHING = { // of the row with every option of the sampler
  temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repetition_penalty: 1.1,
  presence_penalty: 0.1, frequency_penalty: 0.1, logit_bias: { 11: -5 },
};

const engine = address.get("engine") ?? "octavo";
const PEER_CONTEXT = 2048; // tokens that a peer has room for
/** Of kernels, measured in the first load. @type {LoadResult["variants"]} */
let variants = [];
/** Device time by kernel after each decode measurement. @type {Record<string, Measurement["kernels"]>} */
const kernels = {};

whenStarted(() => (engine === "octavo" ? measureAll() : measurePeer(engine)));

async function measureAll() {
  const options = loadOptions();
  await emptyCaches();
  const tune = address.get("tune");
  const all = tune === null ? {} : { tune: tune === "1" };
  const cold = await loadWith(new Octavo(), { ...options, ...all }, "cold");
  variants = cold.result.variants;
  const { device, model } = cold.result;
  byId("device").textContent = `${model.name} on ${device.name}`;
  cold.client.close();
  const cached = await loadWith(new Octavo(), options, "cached");
  const client = cached.client;
  const sizes = chooseSizes(cached.result);

  loadRows("cold", cold);
  loadRows("cached", cached);
  await measureTokenizer(client);
  await measureFirstTokens(client, device);
  await measureSpeed(client, sizes);
  await measurePaging(client, {
    context: Math.max(1, ...sizes.contexts),
    steps: Math.max(MIN_STEPS, sizes.steps),
    rounds: Math.max(PAGING_ROUNDS, sizes.runs),
  });
  await measureStops(client, options, sizes.stops);
  await measureContinue(client);
  if (!device.software && model.context >= HISTORY_TOKENS * 1.3) await measureReuse(client);
  if (device.kind === "webgpu" && !device.software && !address.get("context")) {
    await measureLong(client, options, sizes);
  }
  if (!device.software) await measurePool(client);
  const compared = address.get("compare") === "1" && await compareOctavo(cached, cold.seconds);
  const { memory_bytes } = await client.status();
  if (device.kind === "webgpu" && "losesGpu" in window) await measureRecovery(client);
  client.close();
  return {
    date: new Date().toISOString(),
    user_agent: navigator.userAgent,
    cores: navigator.hardwareConcurrency,
    device,
    model,
    memory_bytes,
    quick: sizes.runs === QUICK.runs,
    rows,
    kernels,
    variants,
    ...(compared && { compared }),
  };
}

/**
 * Measures another engine on the same weights.
 *
 * @param {string} name of a file in peers/
 */
async function measurePeer(name) {
  const { findModel, isSlow, measureEngine } = await import("./peers/compare.mjs");
  /** @type {{load: import("./peers/compare.mjs").Load}} */
  const { load } = await import(`./peers/${name}.mjs`);
  await say(`Loading ${name}`);
  const started = performance.now();
  const peer = await load({
    model: await findModel(address.get("model")),
    device: address.get("device") ?? "gpu",
    context: PEER_CONTEXT,
    threads: Number(address.get("threads")) || undefined,
    graph: address.get("graph") ?? undefined,
  });
  const seconds = secondsSince(started);
  byId("device").textContent = `${peer.name} on ${peer.device}`;
  add("load", "load", seconds, "s", peer.note);
  const quick = compareQuickly(peer.onCpu || await isSlow());
  await measureEngine(peer, { quick, say, add, makeText });
  return {
    date: new Date().toISOString(),
    user_agent: navigator.userAgent,
    cores: navigator.hardwareConcurrency,
    compared: { name: peer.name, device: peer.device, note: peer.note, quick, rows },
  };
}

/**
 * Octavo's own line of the comparison.
 *
 * @param {Load & {client: Octavo}} loaded
 * @param {number} seconds that a first load took
 */
async function compareOctavo({ client, result }, seconds) {
  const { measureEngine } = await import("./peers/compare.mjs");
  const { wrap } = await import("./peers/octavo.mjs");
  const own = rows.length;
  const octavo = await wrap(client, result, encode);
  add("load", "load, as the peers’", seconds, "s");
  const quick = compareQuickly(octavo.onCpu || result.device.software);
  await measureEngine(octavo, { quick, say, add, makeText });
  const { name, device, note } = octavo;
  return { name, device, note, quick, rows: rows.splice(own) };
}

/** @param {boolean} slow whether full sizes would take too long on this device */
function compareQuickly(slow) {
  const quick = address.get("quick");
  return quick === null ? slow : quick === "1";
}

/** @returns {import("./client.mjs").LoadOptions} */
function loadOptions() {
  const names = ["device", "activations", "model"];
  const texts = names.map((name) => [name, address.get(name) || undefined]);
  const context = address.get("context") ? Number(address.get("context")) : undefined;
  const given = [...texts, ["context", context]].filter(([, value]) => value !== undefined);
  return Object.fromEntries(given);
}

/** @param {LoadResult} result */
function chooseSizes({ device, model }) {
  const quick = address.get("quick");
  const sizes = (quick === null ? device.software : quick === "1") ? QUICK : FULL;
  const fits = (/** @type {number} */ tokens) => tokens + MIN_STEPS <= model.context;
  return {
    ...sizes,
    steps: sizes === FULL && device.kind === "webgpu" ? GPU_STEPS : sizes.steps,
    warm: device.kind === "cpu" ? QUICK.warm : Math.min(sizes.warm, model.context >> 1),
    prefill: (numbers("prefill") ?? sizes.prefill).filter(fits),
    contexts: (numbers("contexts") ?? sizes.contexts).filter(fits),
  };
}

/** @param {string} name of an address parameter */
function numbers(name) {
  const found = (address.get(name) ?? "").split(",").map(Number).filter((n) => n > 0);
  return found.length ? found : null;
}

/** Makes the next load a first visit's, as far as a page can. */
async function emptyCaches() {
  await say("Emptying the caches");
  const workers = (await navigator.serviceWorker?.getRegistrations()) ?? [];
  await Promise.all(workers.map((registration) => registration.unregister()));
  await Promise.all((await caches.keys()).map((name) => caches.delete(name)));
}

/**
 * Loads the model in a fresh worker. The time includes the start of the worker and of Python.
 *
 * @param {Octavo} client made just now
 * @param {import("./client.mjs").LoadOptions} options
 * @param {string} kind
 * @returns {Promise<Load & {client: Octavo}>}
 */
async function loadWith(client, options, kind) {
  await say(`Loading, ${kind}`);
  const started = performance.now();
  /** @type {Record<string, number>} */
  const stages = {};
  let uploading = 0;
  const result = await client.load(options, ({ stage }) => {
    stages[stage] = secondsSince(started);
    if (stage === "weights") uploading ||= stages.weights;
  });
  return { client, seconds: secondsSince(started), stages, uploading, result };
}

/**
 * @param {string} kind
 * @param {Load} load
 */
function loadRows(kind, { seconds, stages, uploading, result }) {
  const ends = Object.entries(stages).map(([stage, end]) => `${stage} ${end.toFixed(2)}`);
  add(`load_${kind}_s`, `load, ${kind}`, seconds, "s", `ended at: ${ends.join(", ")}`);
  const rate = result.model.bytes / 1e6 / (stages.weights - uploading);
  add(`weights_${kind}_mb_per_s`, `weights onto the device, ${kind}`, rate, "MB/s");
}

/**
 * Three first answers of about 32 prompt tokens. Each begins differently, so that no part of it
 * lies in the KV cache; a GPU is idle before each of them.
 *
 * @param {Octavo} client
 * @param {LoadResult["device"]} device
 */
async function measureFirstTokens(client, device) {
  const pause = device.kind === "webgpu" && !device.software ? IDLE_MS : 0;
  const times = [];
  let prompt_tokens = 0;
  for (const start of ["One", "Two", "Six"]) {
    await say(`Time to first token, answer ${times.length + 1}`);
    await client.reset();
    await new Promise((resolve) => setTimeout(resolve, pause));
    const messages = [
      { role: "system", content: `${start} short answer, please.` },
      { role: "user", content: "Which animals live in the deep sea, and what do they eat?" },
    ];
    const first = await firstToken(client, messages);
    prompt_tokens = first.prompt_tokens;
    times.push(first.ms);
  }
  const note = `${prompt_tokens} prompt tokens`;
  add("ttft_cold_ms", "time to first token, first answer", times[0], "ms", note);
  add("ttft_warm_ms", "time to first token, third answer", times[2], "ms", note);
  add("ttft_first_to_second", "first answer to second", times[0] / times[1], "times");
}

/**
 * @param {Octavo} client
 * @param {Sizes} sizes
 */
async function measureSpeed(client, sizes) {
  await say("Warming up");
  // the engine learns here how much it may give the device at once
  const first = { prefill: sizes.warm, context: 1, steps: MIN_STEPS };
  const { decode_tokens_per_s } = await client.measure(first);
  const steps = Math.round(decode_tokens_per_s * 2);
  for (const prefill of sizes.prefill) {
    await say(`Prefill of ${prefill} tokens`);
    const all = await repeat(sizes, () => client.measure({ prefill, context: 1, steps: 1 }));
    const rates = all.map((m) => m.prefill_tokens_per_s);
    add(`prefill_${prefill}_tokens_per_s`, `prefill, ${prefill} tokens`, median(rates), "tokens/s",
      spread(rates));
  }
  for (const context of sizes.contexts) {
    await say(`Decode at context ${context}`);
    const count = Math.min(Math.max(MIN_STEPS, Math.min(steps, sizes.steps)),
      /** @type {any} */ ((await client.status()).model).context - context);
    const all = await repeat(sizes, () => client.measure({ prefill: 1, context, steps: count }));
    decodeRows(context, count, all);
    if (context === sizes.contexts[0]) await measureSampled(client, { context, count, all }, sizes);
  }
}

/**
 * Decoding with a temperature, and without all but the matrix products, against plain decoding.
 *
 * @param {Octavo} client
 * @param {{context: number, count: number, all: Measurement[]}} greedy
 * @param {Sizes} sizes
 */
async function measureSampled(client, { context, count, all }, sizes) {
  const rate = median(all.map((m) => m.decode_tokens_per_s));
  for (const [how, label, options] of /** @type {const} */ ([
    ["sampled", "a sampled token to a greedy one", SAMPLED],
    ["all_options", "with every option of the sampler", EVERYTHING],
  ])) {
    await say(`Decode at context ${context}, ${label}`);
    const request = { prefill: 1, context, steps: count, ...options };
    const sampled = await repeat(sizes, () => client.measure(request));
    const warm = median(sampled.map((m) => m.decode_tokens_per_s));
    add(`${how}_to_greedy`, label, rate / warm, "times");
  }
  const skeletons = all.map((m) => m.skeleton_tokens_per_s ?? NaN);
  if (Number.isNaN(skeletons[0])) return;
  const skeleton = median(skeletons);
  add("skeleton_tokens_per_s", "skeleton: the products alone", skeleton, "tokens/s",
    spread(skeletons));
  add("token_to_skeleton", "a token to one of the skeleton", skeleton / rate, "times");
}

/**
 * @param {number} context
 * @param {number} steps
 * @param {Measurement[]} all
 */
function decodeRows(context, steps, all) {
  const rates = all.map((m) => m.decode_tokens_per_s);
  const rate = median(rates);
  const hosts = all.map((m) => m.host_ms_per_token);
  const host = median(hosts);
  const encodes = all.map((m) => m.encode_ms_per_token ?? NaN);
  const { dispatches_per_token, layers, burst, memory } = all[all.length - 1];
  kernels[`context ${context}`] = all[all.length - 1].kernels;
  add(`decode_${context}_tokens_per_s`, `decode, context ${context}`, rate, "tokens/s",
    `${steps} tokens in bursts of ${burst}; ${spread(rates)}`);
  add(`host_${context}_ms`, `Python and JavaScript a token, context ${context}`, host, "ms",
    spread(hosts));
  add(`host_${context}_percent`, "  share of the token’s time", host * rate / 10, "%");
  if (!Number.isNaN(encodes[0])) {
    add(`encode_${context}_ms`, "  of it recording GPU commands", median(encodes), "ms");
  }
  if (rows.some(({ id }) => id === "dispatches")) return;
  add("dispatches", "dispatches a token", dispatches_per_token, "");
  add("dispatches_a_layer", "  beside four, a layer", (dispatches_per_token - 4) / layers, "");
  const held = Object.entries(memory);
  add("memory_mb", "device memory", held.reduce((sum, [, bytes]) => sum + bytes, 0) / 1e6, "MB");
  for (const [label, bytes] of held) add(`memory_${label}_mb`, `  ${label}`, bytes / 1e6, "MB");
}

/**
 * The first token of a second turn, with what the first one left in the KV cache and without.
 *
 * @param {Octavo} client
 */
async function measureReuse(client) {
  await say("A second turn");
  await client.reset();
  const question = { role: "user", content: `${HISTORY} Is anybody there?` };
  const { choices } = await client.chat.completions.create({ messages: [question], max_tokens: 8 });
  const messages = [question, choices[0].message, { role: "user", content: "And then?" }];
  const reused = await firstToken(client, messages);
  await client.reset();
  const fresh = await firstToken(client, messages);
  const note = `${fresh.prompt_tokens} prompt tokens`;
  add("ttft_second_turn_ms", "first token of a second turn", reused.ms, "ms", note);
  add("reuse", "  without the KV cache, to that", fresh.ms / reused.ms, "times");
}

/**
 * @param {Octavo} client
 * @param {import("./client.mjs").ChatMessage[]} messages
 */
async function firstToken(client, messages) {
  const started = performance.now();
  let ms = 0;
  let prompt_tokens = 0;
  const request = { messages, max_tokens: 6, stream: /** @type {const} */ (true) };
  for await (const chunk of client.chat.completions.create(request)) {
    if (chunk.octavo.num_tokens) ms ||= performance.now() - started;
    prompt_tokens = chunk.usage?.prompt_tokens ?? prompt_tokens;
  }
  return { ms, prompt_tokens };
}

/**
 * What only a real GPU has the time and memory for: a long prompt, and decoding far into a context.
 *
 * @param {Octavo} client
 * @param {import("./client.mjs").LoadOptions} options
 * @param {Sizes} sizes
 */
async function measureLong(client, options, sizes) {
  const { prefill, context, steps } = LONG;
  await say("Loading with a long context");
  const { model } = await client.load({ ...options, context: context + 512 });
  if (model.context < context + steps) return;
  await client.measure({ prefill: sizes.warm, context: 1, steps: MIN_STEPS });
  await say(`Prefill of ${prefill} tokens; decode at context ${context}`);
  const all = await repeat(sizes, () => client.measure({ prefill, context, steps }));
  const prefills = all.map((m) => m.prefill_tokens_per_s);
  add(`prefill_${prefill}_tokens_per_s`, `prefill, ${prefill} tokens`, median(prefills), "tokens/s",
    spread(prefills));
  const rates = all.map((m) => m.decode_tokens_per_s);
  add(`decode_${context}_tokens_per_s`, `decode, context ${context}`, median(rates), "tokens/s",
    spread(rates));
  const near = rows.find(({ id }) => id === "decode_64_tokens_per_s");
  if (near) {
    add("decode_far_to_near", `a token at ${context} to one at 64`, near.value / median(rates),
      "times");
  }
}

/**
 * @template T
 * @param {Sizes} sizes
 * @param {() => Promise<T>} measure
 * @returns {Promise<T[]>}
 */
async function repeat({ runs, seconds }, measure) {
  const started = performance.now();
  const all = [];
  do all.push(await measure());
  while (all.length < runs && secondsSince(started) < seconds);
  return all;
}
