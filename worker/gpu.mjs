// The player: owns the GPU device and its buffers, compiles recorded plans once and replays them.
// It knows nothing of models; buffers and plans go by name, and everything that changes from
// step to step lives in GPU buffers.

import { describe, openDevice } from "./adapters.mjs";
import { Buffers, GpuError, memoryError, scoped } from "./buffers.mjs";
import { Readback } from "./readback.mjs";
import { summarize } from "./summary.mjs";
import { passTime, profile } from "./timing.mjs";
import { Uploads } from "./upload.mjs";
import { within } from "./waits.mjs";

/**
 * @typedef {import("./readback.mjs").Part} Part
 * @typedef {{code: string, layout: ("read" | "read_write")[], constants: Record<string, number>}} WirePipeline
 * `code` is a key of `modules`.
 * @typedef {{label: string, pipeline: number, buffers: string[], grid: number[], tokens: number}} WireDispatch
 * With `tokens`, the y grid is ceil(step tokens / tokens).
 * @typedef {{modules: Record<string, string>, pipelines: WirePipeline[], plans: Record<string, WireDispatch[]>}} Wire
 * @typedef {{name: string, bytes: number, label: string}} WireBuffer
 * @typedef {{repack: string, source: number, first: number, count: number, buffers: string[], bytes: number}} WireJob
 * Repack `count` blocks from byte `source` of the raw shard, the first one being block `first`;
 * with an empty `repack`, copy `bytes` from `source` to byte `first`.
 * @typedef {{layout: GPUBindGroupLayout, buffers: string[], group: GPUBindGroup}} Binding
 * @typedef {{buffer: string, bytes: number}} WireRead the first `bytes` of a buffer
 * @typedef {{label: string, pipeline: GPUComputePipeline, binding: Binding, grid: number[], tokens: number}} Dispatch
 */

const WORK_SECONDS = 300; // for a kernel to compile, and for what the GPU was given last
const RING = 256; // sampled ids wait in a ring of this many
const SUBMIT = 32; // dispatches of a submit where a step is waited for: the GPU begins meanwhile
const BURST_SUBMIT = 4; // steps of a submit in a burst: the GPU is busy anyway, a submit has its price

export class Gpu {
  /** Players that no model has. They keep what they have compiled.
   * @type {(Gpu | Promise<Gpu | null>)[]} */
  static #spare = [];

  /** A player with a device of its own, until it is released; null where there is no adapter.
   * @returns {Promise<Gpu | null>} */
  static async request() {
    while (Gpu.#spare.length) {
      const gpu = await Gpu.#spare.pop();
      if (gpu && !gpu.#isLost) return gpu;
    }
    return Gpu.#open().catch((error) => {
      throw new GpuError("gpu.unavailable", `The GPU gives no device: ${error.message}`);
    });
  }

  /** Begins to open a device, which the next request gets. */
  static prepare() {
    Gpu.#spare.push(Gpu.#open().catch(() => null)); // asked again, it says why
  }

  static async #open() {
    const opened = await openDevice();
    return opened && new Gpu(opened.adapter, opened.device);
  }

  /** @param {GPUAdapter} adapter @param {GPUDevice} device */
  constructor(adapter, device) {
    this.adapter = adapter;
    this.device = device;
    this.buffers = new Buffers(device);
    this.#readback = new Readback(device, () => this.buffers.held);
    /** @type {Map<string, Dispatch[]>} */
    this.plans = new Map();
    /** @type {Map<string, Promise<GPUComputePipeline>>} */
    this.pipelines = new Map();
    /** @type {Map<string, GPUBindGroupLayout>} */
    this.layouts = new Map();
    this.encodeMs = 0; // spent recording and submitting commands
    /** What the GPU refused, and nobody has heard of. @type {GPUError | null} */
    this.failure = null;
    this.epoch = 0; // counts `clear`: what began before it must not touch what came after
    device.addEventListener("uncapturederror", (event) => {
      this.failure ??= event.error;
    });
    /** Rejects when the device is lost; raced against every wait. @type {Promise<never>} */
    this.lost = device.lost.then((info) => {
      throw new GpuError("gpu.lost", `The GPU device was lost: ${info.message || info.reason}`);
    });
    this.lost.catch(() => {
      this.#isLost = true;
    });
  }

  /** What Python needs to know of the adapter, as JSON. @returns {string} */
  describe() {
    return JSON.stringify(describe(this.adapter));
  }

  /** Creates buffers, zeroed; one that is there and large enough stays. @param {string} json WireBuffer[] */
  async allocate(json) {
    await this.alive(this.buffers.allocate(JSON.parse(json)));
  }

  /** A buffer that belongs to no name. @param {GPUBufferDescriptor} descriptor */
  async create(descriptor) {
    const { epoch } = this;
    const { made, failed } = scoped(this.device, () => this.device.createBuffer(descriptor));
    const error = await this.alive(failed);
    if (error || epoch !== this.epoch) made?.destroy();
    this.checkEpoch(epoch);
    if (!made || error) throw memoryError(error, descriptor.size, this.buffers.held);
    return made;
  }

  /** Puts larger buffers, with the same contents, in the place of those of the same names. What was
   * submitted before is not disturbed. False if the GPU has not the memory: nothing has changed.
   * @param {string} json WireBuffer[] @returns {Promise<boolean>} */
  async grow(json) {
    const wanted = /** @type {WireBuffer[]} */ (JSON.parse(json));
    const { epoch } = this;
    const larger = await this.alive(this.buffers.tryLarger(wanted));
    if (epoch !== this.epoch) for (const buffer of larger ?? []) buffer.destroy();
    this.checkEpoch(epoch);
    if (!larger) return false;
    // Nothing is waited for from here on, so that nobody submits anything in between.
    this.buffers.replace(wanted, larger);
    const names = new Set(wanted.map(({ name }) => name));
    const bindings = new Set([...this.plans.values()].flat().map(({ binding }) => binding));
    for (const binding of bindings) {
      const { layout, buffers } = binding;
      if (buffers.some((name) => names.has(name))) binding.group = this.#bind(layout, buffers);
    }
    return true;
  }

  /** Bytes held on the GPU by label, as JSON. @returns {string} */
  memory() {
    return JSON.stringify(this.buffers.bytes());
  }

  /** @param {string} name @returns {GPUBuffer} */
  buffer(name) {
    return this.buffers.get(name);
  }

  /** @param {string} name @param {number} offset @param {Uint8Array<ArrayBuffer>} bytes */
  write(name, offset, bytes) {
    this.device.queue.writeBuffer(this.buffer(name), offset, bytes);
  }

  /** @param {("read" | "read_write")[]} access @returns {GPUBindGroupLayout} */
  layout(access) {
    const key = access.join();
    let layout = this.layouts.get(key);
    if (!layout) {
      layout = this.device.createBindGroupLayout({
        entries: access.map((mode, binding) => ({
          binding,
          visibility: GPUShaderStage.COMPUTE,
          buffer: { type: mode === "read" ? "read-only-storage" : "storage" },
        })),
      });
      this.layouts.set(key, layout);
    }
    return layout;
  }

  /** @param {string} code @param {WirePipeline} wire @returns {Promise<GPUComputePipeline>} */
  pipeline(code, wire) {
    const key = JSON.stringify([code, wire.layout, wire.constants]);
    let pipeline = this.pipelines.get(key);
    if (!pipeline) {
      const compiled = this.device.createComputePipelineAsync({
        layout: this.device.createPipelineLayout({ bindGroupLayouts: [this.layout(wire.layout)] }),
        compute: { module: this.#module(code), entryPoint: "main", constants: wire.constants },
      });
      pipeline = within(WORK_SECONDS, compiled, "Compiling a kernel", "gpu.stalled");
      this.pipelines.set(key, pipeline);
      pipeline.catch(() => this.pipelines.delete(key));
    }
    return pipeline;
  }

  #isLost = false;
  #readback;
  /** @type {Map<string, GPUShaderModule>} */
  #modules = new Map();
  #uploads = new Uploads(this);

  /** @param {string} code @returns {GPUShaderModule} */
  #module(code) {
    let module = this.#modules.get(code);
    if (!module) {
      module = this.device.createShaderModule({ code });
      this.#modules.set(code, module);
    }
    return module;
  }

  /** Compiles the pipelines of plans whose buffers are allocated, and binds them.
   * @param {string} json Wire @param {(done: number, total: number) => void} [progress] */
  async compile(json, progress) {
    await this.alive(this.#compile(json, progress));
  }

  /** @param {string} json @param {(done: number, total: number) => void} [progress] */
  async #compile(json, progress) {
    const wire = /** @type {Wire} */ (JSON.parse(json));
    const { epoch } = this;
    let done = 0;
    const pipelines = await Promise.all(
      wire.pipelines.map(async (p) => {
        const pipeline = await this.pipeline(wire.modules[p.code], p);
        progress?.(++done, wire.pipelines.length);
        return pipeline;
      }),
    );
    this.checkEpoch(epoch);
    /** @type {Map<string, Binding>} */
    const bindings = new Map();
    for (const [name, dispatches] of Object.entries(wire.plans)) {
      this.plans.set(
        name,
        dispatches.map(({ label, pipeline, buffers, grid, tokens }) => {
          const layout = this.layout(wire.pipelines[pipeline].layout);
          const key = `${wire.pipelines[pipeline].layout.join()}|${buffers.join()}`;
          const binding = bindings.get(key) ?? { layout, buffers, group: this.#bind(layout, buffers) };
          bindings.set(key, binding);
          return { label, pipeline: pipelines[pipeline], binding, grid, tokens };
        }),
      );
    }
  }

  /** Starts to compile pipelines that will be asked for: they take their time in parallel.
   * @param {string} json Wire, of which the plans do not matter */
  prepare(json) {
    const wire = /** @type {Wire} */ (JSON.parse(json));
    for (const p of wire.pipelines) this.pipeline(wire.modules[p.code], p).catch(() => {});
  }

  /** Throws if the buffers of `epoch` are gone. @param {number} epoch */
  checkEpoch(epoch) {
    if (epoch !== this.epoch) throw new GpuError("request.cancelled", "The model was unloaded.");
  }

  /** @param {GPUBindGroupLayout} layout @param {string[]} names */
  #bind(layout, names) {
    return this.device.createBindGroup({
      layout,
      entries: names.map((name, binding) => ({ binding, resource: { buffer: this.buffer(name) } })),
    });
  }

  /** Replays plans one after another, `repeat` times with a submit each, and resolves to `count`
   * sampled ids from ring place `first` on; with no ids wanted, resolves when the GPU is done.
   * @param {string} names plans, separated by commas @param {number} tokens tokens of the step
   * @param {number} repeat @param {number} first @param {number} count
   * @returns {Promise<Uint32Array>} */
  run(names, tokens, repeat, first, count) {
    const started = performance.now();
    const step = names.split(",").flatMap((name) => this.#plan(name));
    const work = Array.from({ length: repeat }, () => step).flat();
    const size = repeat > 1 ? BURST_SUBMIT * step.length : SUBMIT;
    const ring = count ? [{ source: this.buffer("sampled"), offset: 0, bytes: RING * 4 }] : [];
    const done = this.#submit(work, tokens, size, ring);
    this.encodeMs += performance.now() - started;
    return done.then((copies) => {
      const [ids] = copies.map(({ buffer }) => new Uint32Array(buffer));
      return Uint32Array.from({ length: count }, (_, i) => ids[(first + i) % RING]);
    });
  }

  /** Replays a plan, and reads the beginnings of buffers afterwards: one wait for both.
   * @param {string} name @param {number} tokens @param {string} json WireRead[]
   * @returns {Promise<Uint8Array[]>} */
  compute(name, tokens, json) {
    return this.#submit(this.#plan(name), tokens, SUBMIT, this.#parts(json));
  }

  /** Submits dispatches, so many at a time, and copies of `parts` with the last of them. Resolves to
   * these when the GPU is done.
   * @param {Dispatch[]} dispatches @param {number} tokens @param {number} size
   * @param {Part[]} parts */
  #submit(dispatches, tokens, size, parts) {
    const copy = parts.length ? this.#readback.copy(parts) : null;
    let at = 0;
    do {
      const encoder = this.device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      this.encode(pass, dispatches.slice(at, at + size), tokens);
      pass.end();
      at += size;
      if (at >= dispatches.length) copy?.encode(encoder);
      this.device.queue.submit([encoder.finish()]);
    } while (at < dispatches.length);
    return this.settle(copy ? copy.read() : this.device.queue.onSubmittedWorkDone().then(() => []));
  }

  /** @param {string} json WireRead[] @returns {Part[]} */
  #parts(json) {
    const reads = /** @type {WireRead[]} */ (JSON.parse(json));
    return reads.map(({ buffer, bytes }) => ({ source: this.buffer(buffer), offset: 0, bytes }));
  }

  /** @param {string} name @returns {Dispatch[]} */
  #plan(name) {
    const plan = this.plans.get(name);
    if (!plan) throw new GpuError("internal", `There is no plan ${name}.`);
    return plan;
  }

  /** @param {GPUComputePassEncoder} pass @param {Dispatch[]} plan @param {number} tokens */
  encode(pass, plan, tokens) {
    let current = null;
    for (const { pipeline, binding, grid, tokens: each } of plan) {
      if (pipeline !== current) pass.setPipeline(pipeline);
      current = pipeline;
      pass.setBindGroup(0, binding.group);
      pass.dispatchWorkgroups(grid[0], each ? Math.ceil(tokens / each) : grid[1], grid[2]);
    }
  }

  /** GPU time of a plan by dispatch label, as JSON of [label, count, ms]; each dispatch in a pass
   * of its own, so that only their proportions are true. Empty without timestamp queries.
   * @param {string} name @param {number} tokens @returns {Promise<string>} */
  async profile(name, tokens) {
    return JSON.stringify(await profile(this, this.#plan(name), tokens));
  }

  /** Milliseconds that `repeat` replays of a plan take in one pass: by the GPU's clock, or where
   * it tells no time, from submit to end.
   * @param {string} name @param {number} tokens @param {number} repeat @returns {Promise<number>} */
  async time(name, tokens, repeat) {
    const step = Array.from({ length: repeat }, () => this.#plan(name)).flat();
    if (this.device.features.has("timestamp-query")) return passTime(this, step, tokens);
    const started = performance.now();
    await this.#submit(step, tokens, step.length, []);
    return performance.now() - started;
  }

  /** Runs one dispatch of a plan, and reads what it wrote.
   * @param {string} name @param {number} index @param {number} tokens @param {string} json WireRead[]
   * @returns {Promise<Uint8Array[]>} */
  trace(name, index, tokens, json) {
    return this.#submit([this.#plan(name)[index]], tokens, 1, this.#parts(json));
  }

  /** The same, of which only six numbers are told: see summary.mjs. @returns {Promise<string>} JSON
   * @param {string} name @param {number} index @param {number} tokens @param {string} json WireRead[] */
  async survey(name, index, tokens, json) {
    return JSON.stringify((await this.trace(name, index, tokens, json)).map(summarize));
  }

  /** Waits for the GPU, and turns what went wrong on it into an error.
   * @template T @param {Promise<T>} promise @returns {Promise<T>} */
  async settle(promise) {
    try {
      const value = await this.alive(promise);
      if (!this.failure) return value;
    } catch (error) {
      if (/** @type {any} */ (error).code === "memory.device") await this.#forget();
      throw error;
    }
    const error = this.failure;
    await this.#forget();
    if (error instanceof GPUOutOfMemoryError) throw memoryError(error, 0, this.buffers.held);
    throw new GpuError("internal", `The GPU refused a command: ${error.message}`);
  }

  /** One bad command can be reported more than once; the next call is not to blame. */
  async #forget() {
    await this.alive(this.device.queue.onSubmittedWorkDone());
    this.failure = null;
  }

  /** What a lost device breaks off, or never ends, fails as that.
   * @template T @param {Promise<T>} promise @returns {Promise<T>} */
  async alive(promise) {
    try {
      const answer = Promise.race([promise, this.lost]);
      return await within(WORK_SECONDS, answer, "The GPU", "gpu.stalled");
    } catch (error) {
      // It may say something else first.
      await Promise.race([this.lost, new Promise((resolve) => setTimeout(resolve, 50))]);
      throw error;
    }
  }

  /** Reads a buffer back. @param {string} name @param {number} offset @param {number} bytes
   * @returns {Promise<Uint8Array>} */
  read(name, offset, bytes) {
    return this.copyOf({ source: this.buffer(name), offset, bytes });
  }

  /** @param {Part} part @returns {Promise<Uint8Array>} */
  async copyOf(part) {
    const copy = this.#readback.copy([part]);
    const encoder = this.device.createCommandEncoder();
    copy.encode(encoder);
    this.device.queue.submit([encoder.finish()]);
    return (await this.settle(copy.read()))[0];
  }

  /** Kernels that repack weights, by name: before anything is uploaded.
   * @param {string} json WirePipeline by name, each with its own code */
  useRepacks(json) {
    this.#uploads.kernels = JSON.parse(json);
  }

  /** Shards will come: see Uploads. @param {number} bytes of the largest @param {number} count */
  beginUpload(bytes, count) {
    this.#uploads.begin(bytes, count);
  }

  /** Takes the next shard of a model: see Uploads.
   * @param {Uint8Array} bytes @param {number} carry @param {string} jobsJson WireJob[] */
  upload(bytes, carry, jobsJson) {
    return this.alive(this.#uploads.upload(bytes, carry, jobsJson));
  }

  /** All shards have come. */
  finishUpload() {
    this.#uploads.close();
  }

  /** Frees what a model had on the device, which the next one gets. */
  release() {
    this.clear();
    if (!this.#isLost && !Gpu.#spare.includes(this)) Gpu.#spare.push(this);
  }

  /** Frees everything but the device. */
  clear() {
    this.#readback.close();
    this.buffers.clear();
    this.#uploads.close();
    this.epoch++;
    this.failure = null;
    this.plans.clear();
  }
}
