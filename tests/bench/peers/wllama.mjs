/**
 * wllama: llama.cpp in WebAssembly, with its WebGPU back end where the adapter has shader-f16.
 * Without that feature it computes on the CPU and says so only in its log.
 */

import { describeGpu } from "./compare.mjs";
import { Wllama } from "./lib/wllama/index.js";

const VERSION = "3.13.0"; // as in package.json; the library does not tell
/** Greedy, nothing kept from the prompt before, and no end before `max_tokens`. */
const GREEDY = {
  temperature: 0, top_k: 1, samplers: ["top_k"], ignore_eos: true, cache_prompt: false,
};
const ALL_LAYERS = 999;

/**
 * @param {import("./compare.mjs").Options} options
 * @returns {Promise<import("./compare.mjs").Engine>}
 */
export async function load({ model, device, context, threads }) {
  /** @type {string[]} */
  const log = [];
  const keep = (/** @type {unknown[]} */ ...words) => void log.push(words.map(String).join(" "));
  const logger = { debug: keep, log: keep, warn: keep, error: keep };
  const wasm = new URL("./lib/wllama/wllama.wasm", import.meta.url).href;
  const wllama = new Wllama({ default: wasm }, { logger });
  const shards = await Promise.all(model.shards.map(({ name }) => fetchBlob(model.folder + name)));
  await wllama.loadModel([new Blob(shards)], {
    n_ctx: context,
    n_parallel: 1,
    n_gpu_layers: device === "cpu" ? 0 : ALL_LAYERS,
    ...(threads && { n_threads: threads }),
  });
  const onCpu = !usesGpu(log);
  const count = wllama.getNumThreads();
  const inWords = `CPU, ${count} ${count === 1 ? "thread" : "threads"}`;
  return {
    name: `wllama ${VERSION}${onCpu ? `, ${inWords}` : ""}`,
    device: onCpu ? inWords : await describeGpu(),
    onCpu,
    note: `llama.cpp ${Wllama.getLibllamaVersion()}`,
    vocabulary: wllama.getLoadedContextInfo().n_vocab,
    async generate({ words }, count) {
      /** @type {number[]} */
      const times = [];
      const onData = () => void times.push(performance.now());
      const request = { prompt: words.join(" "), max_tokens: count, stream: true, ...GREEDY };
      await wllama.createCompletion({ ...request, onData });
      return times.slice(0, count); // a last message may close the answer
    },
  };
}

/** @param {string} url */
async function fetchBlob(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.blob();
}

/**
 * Whether llama.cpp, going by its log, put the layers onto the GPU.
 *
 * @param {string[]} log
 */
function usesGpu(log) {
  const placed = /WebGPU\d* model buffer size|offloaded [1-9]\d*\/\d+ layers to GPU/;
  return log.some((line) => placed.test(line));
}
