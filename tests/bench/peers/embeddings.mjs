/** transformers.js as an encoder of sentences: the pipeline, f32 weights, WebGPU. */

import { env, pipeline } from "./lib/transformers/transformers.min.js";

/**
 * @param {URL} manifest in the folder that has the ONNX form of the same model, too
 * @param {string} device
 * @returns {Promise<import("../../../web/bench_embeddings.mjs").Encoder>}
 */
export async function load(manifest, device) {
  const folder = new URL(".", manifest);
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = new URL("..", folder).pathname; // it looks for no tokenizer behind an address
  env.useBrowserCache = false;
  env.useWasmCache = false;
  const { wasm, versions } = env.backends.onnx;
  wasm.wasmPaths = new URL("./lib/transformers/", import.meta.url).href;
  const id = /** @type {string} */ (folder.pathname.split("/").at(-2));
  const extract = await pipeline("feature-extraction", id, {
    device: device === "cpu" ? "wasm" : "webgpu",
    dtype: "fp32",
  });
  return {
    name: `transformers.js ${env.version}`,
    note: `onnxruntime-web ${versions.web}, f32`,
    async embed(texts) {
      const { data, dims } = await extract(texts, { pooling: "mean", normalize: true });
      return texts.map((_, i) => data.subarray(i * dims[1], (i + 1) * dims[1]));
    },
  };
}
