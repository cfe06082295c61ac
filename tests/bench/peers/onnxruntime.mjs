/**
 * onnxruntime-web driven by hand, at the best setting found that needs no patch and no browser
 * flag: the JSPI build, keys and values in buffers of a fixed size that are written in place,
 * and the likeliest token chosen on the GPU, so that four bytes a token come back.
 */

import { describeGpu } from "./compare.mjs";
import * as ort from "./lib/onnxruntime/ort.jspi.bundle.min.mjs";

const DATA = "model_q4.onnx_data";
const GRAPH = "model_q4a0.onnx"; // may not round activations, which is faster on a real GPU

/**
 * @typedef {object} Shape
 * @property {number} num_hidden_layers
 * @property {number} num_key_value_heads
 * @property {number} head_dim
 * @property {number} vocab_size
 *
 * @typedef {Record<string, unknown>} Feeds
 */

/**
 * @param {import("./compare.mjs").Options} options
 * @returns {Promise<import("./compare.mjs").Engine>}
 */
export async function load({ model, device, context, graph = GRAPH }) {
  if (device === "cpu") throw new Error("This adapter is for GPUs.");
  ort.env.wasm.wasmPaths = new URL("./lib/onnxruntime/", import.meta.url).href;
  const shape = JSON.parse(new TextDecoder().decode(await bytes(`${model.folder}config.json`)));
  const data = await bytes(`${model.folder}onnx/${DATA}`);
  const session = await ort.InferenceSession.create(await bytes(`${model.folder}onnx/${graph}`), {
    executionProviders: [{ name: "webgpu", validationMode: "disabled" }],
    externalData: [{ path: DATA, data }],
    preferredOutputLocation: Object.fromEntries(
      [...cacheNames(shape, "present"), "logits"].map((name) => [name, "gpu-buffer"]),
    ),
  });
  const gpu = await ort.env.webgpu.device;
  await gpu.queue.onSubmittedWorkDone();
  const decoder = new Decoder(session, gpu, shape, context);
  return {
    name: `onnxruntime-web ${ort.env.versions.web}, ${graph.replace(".onnx", "")}`,
    device: await describeGpu(),
    onCpu: false,
    note: "by hand: JSPI build, static cache, argmax on the GPU",
    vocabulary: shape.vocab_size,
    generate: ({ ids }, count) => decoder.generate(ids, count),
  };
}

class Decoder {
  #session;
  #gpu;
  #argmax;
  /** The last token, as the graph takes it. */
  #token;
  /** Inputs and outputs that stay the same: the cache, written in place, and the logits. */
  #feeds;
  #fetches;

  /**
   * @param {ort.Session} session
   * @param {GPUDevice} gpu
   * @param {Shape} shape
   * @param {number} context
   */
  constructor(session, gpu, shape, context) {
    this.#session = session;
    this.#gpu = gpu;
    const logits = makeBuffer(gpu, shape.vocab_size * 4);
    this.#argmax = new Argmax(gpu, logits, shape.vocab_size);
    this.#token = onGpu(this.#argmax.token, "int64", [1, 1]);
    const dims = [1, shape.num_key_value_heads, context, shape.head_dim];
    const size = dims.reduce((product, dim) => product * dim) * 4;
    const cache = cacheNames(shape, "").map(() => onGpu(makeBuffer(gpu, size), "float32", dims));
    const named = (/** @type {string} */ prefix) =>
      Object.fromEntries(cacheNames(shape, prefix).map((name, i) => [name, cache[i]]));
    this.#feeds = named("past_key_values");
    this.#fetches = {
      ...named("present"),
      logits: onGpu(logits, "float32", [1, 1, shape.vocab_size]),
    };
  }

  /**
   * @param {number[]} ids
   * @param {number} count
   */
  async generate(ids, count) {
    const times = [];
    let input = new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
    for (let i = 0; i < count; i++) {
      const length = ids.length + i;
      const mask = new ort.Tensor("int64", new BigInt64Array(length).fill(1n), [1, length]);
      const feeds = { input_ids: input, attention_mask: mask, ...this.#feeds };
      await this.#session.run(feeds, this.#fetches);
      await this.#argmax.run();
      times.push(performance.now());
      input = this.#token;
    }
    return times;
  }
}

/** Chooses the likeliest token on the GPU, writes it as the next input, and reads it back. */
class Argmax {
  #gpu;
  #pipeline;
  #bindings;
  #readback;

  /**
   * @param {GPUDevice} gpu
   * @param {GPUBuffer} logits
   * @param {number} vocabulary
   */
  constructor(gpu, logits, vocabulary) {
    this.#gpu = gpu;
    /** One int64. */
    this.token = makeBuffer(gpu, 16);
    this.#readback = gpu.createBuffer({
      size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    const module = gpu.createShaderModule({ code: argmaxCode(vocabulary) });
    this.#pipeline = gpu.createComputePipeline({ layout: "auto", compute: { module } });
    this.#bindings = gpu.createBindGroup({
      layout: this.#pipeline.getBindGroupLayout(0),
      entries: [logits, this.token].map((buffer, binding) => ({ binding, resource: { buffer } })),
    });
  }

  async run() {
    const encoder = this.#gpu.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipeline);
    pass.setBindGroup(0, this.#bindings);
    pass.dispatchWorkgroups(1);
    pass.end();
    encoder.copyBufferToBuffer(this.token, 0, this.#readback, 0, 16);
    this.#gpu.queue.submit([encoder.finish()]);
    await this.#readback.mapAsync(GPUMapMode.READ);
    const id = new Uint32Array(this.#readback.getMappedRange())[0];
    this.#readback.unmap();
    return id;
  }
}

/** @param {number} vocabulary */
function argmaxCode(vocabulary) {
  return `
    @group(0) @binding(0) var<storage, read> logits: array<f32>;
    @group(0) @binding(1) var<storage, read_write> token: array<u32>;
    var<workgroup> best: array<f32, 256>;
    var<workgroup> place: array<u32, 256>;

    @compute @workgroup_size(256)
    fn main(@builtin(local_invocation_id) local: vec3u) {
      let lane = local.x;
      best[lane] = logits[lane];
      place[lane] = lane;
      for (var i = lane + 256u; i < ${vocabulary}u; i += 256u) {
        if (logits[i] > best[lane]) {
          best[lane] = logits[i];
          place[lane] = i;
        }
      }
      workgroupBarrier();
      for (var half = 128u; half > 0u; half >>= 1u) {
        if (lane < half && best[lane + half] > best[lane]) {
          best[lane] = best[lane + half];
          place[lane] = place[lane + half];
        }
        workgroupBarrier();
      }
      if (lane == 0u) {
        token[0] = place[0];
        token[1] = 0u;
      }
    }`;
}

/**
 * @param {Shape} shape
 * @param {string} prefix
 */
function cacheNames({ num_hidden_layers }, prefix) {
  const layers = Array.from({ length: num_hidden_layers }, (_, layer) => layer);
  return layers.flatMap((layer) => ["key", "value"].map((kind) => `${prefix}.${layer}.${kind}`));
}

/**
 * @param {GPUDevice} gpu
 * @param {number} size bytes
 */
function makeBuffer(gpu, size) {
  const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
  return gpu.createBuffer({ size: Math.ceil(size / 16) * 16, usage: STORAGE | COPY_SRC | COPY_DST });
}

/**
 * @param {GPUBuffer} buffer
 * @param {string} dataType
 * @param {number[]} dims
 */
function onGpu(buffer, dataType, dims) {
  return ort.Tensor.fromGpuBuffer(buffer, { dataType, dims });
}

/** @param {string} url */
async function bytes(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}
