/** transformers.js as it is shipped: q4 weights, its own generate(), WebGPU. */

import { describeGpu } from "./compare.mjs";
import { AutoModelForCausalLM, BaseStreamer, Tensor, env } from "./lib/transformers/transformers.min.js";

/** Notes when tokens come. The first call brings the prompt. */
class Clock extends BaseStreamer {
  /** @type {number[]} */
  times = [];
  #prompted = false;

  put() {
    if (this.#prompted) this.times.push(performance.now());
    this.#prompted = true;
  }

  end() {}
}

/**
 * @param {import("./compare.mjs").Options} options
 * @returns {Promise<import("./compare.mjs").Engine>}
 */
export async function load({ model, device }) {
  if (device === "cpu") throw new Error("This adapter is for GPUs.");
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = new URL("..", model.folder).href;
  env.useBrowserCache = false;
  env.useWasmCache = false;
  const { wasm, versions } = env.backends.onnx;
  wasm.wasmPaths = new URL("./lib/transformers/", import.meta.url).href;
  const loaded = await AutoModelForCausalLM.from_pretrained(model.id, {
    device: "webgpu",
    dtype: "q4",
  });
  return {
    name: `transformers.js ${env.version}`,
    device: await describeGpu(),
    onCpu: false,
    note: `onnxruntime-web ${versions.web}, q4`,
    vocabulary: loaded.config.vocab_size,
    async generate({ ids }, count) {
      const streamer = new Clock();
      const shape = [1, ids.length];
      await loaded.generate({
        input_ids: new Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
        attention_mask: new Tensor("int64", new BigInt64Array(ids.length).fill(1n), shape),
        max_new_tokens: count,
        min_new_tokens: count,
        do_sample: false,
        eos_token_id: [-1],
        streamer,
      });
      return streamer.times;
    },
  };
}
