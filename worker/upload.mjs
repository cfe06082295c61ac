// Shards on their way into the weights: through mapped staging buffers to a raw buffer on the GPU,
// where kernels split the file's blocks into planes.

/**
 * @typedef {import("./gpu.mjs").WireJob} WireJob
 * @typedef {import("./gpu.mjs").WirePipeline} WirePipeline
 * @typedef {{job: WireJob, kernel: WirePipeline, pipeline: GPUComputePipeline}} Repack
 * @typedef {object} Player what is needed of the player
 * @property {GPUDevice} device
 * @property {number} epoch
 * @property {(name: string) => GPUBuffer} buffer
 * @property {(descriptor: GPUBufferDescriptor) => Promise<GPUBuffer>} create
 * @property {(access: ("read" | "read_write")[]) => GPUBindGroupLayout} layout
 * @property {(code: string, wire: WirePipeline) => Promise<GPUComputePipeline>} pipeline
 * @property {<T>(promise: Promise<T>) => Promise<T>} settle
 * @property {(epoch: number) => void} checkEpoch
 */

export const CARRY = 512; // bytes before a shard that hold the last, incomplete block of the one before
const STAGES = 2; // staging buffers: one is filled while the GPU copies from the other
const JOB_ALIGN = 256; // minimum alignment of a storage binding's offset
const MAX_WORKGROUPS = 65535;

export class Uploads {
  #player;
  /** Mapped again and again, which is several times faster than making mapped buffers.
   * @type {{buffer: GPUBuffer, mapped: Promise<void | undefined>}[]} */
  #stages = [];
  /** Shards on the GPU by turns: this one, and the one before. @type {GPUBuffer[]} */
  #raw = [];
  #count = 0;
  /** Bytes of the last shard if its end belongs to the next one, else 0. */
  #carried = 0;

  /** @param {Player} player */
  constructor(player) {
    this.#player = player;
  }

  /** Takes the next shard of a model: puts it on the GPU and repacks the weights in it. The last
   * bytes stay for the next shard if `carry`, whose first block they begin. Resolves when the
   * shard is on its way: the next one can be read meanwhile.
   * @param {Uint8Array} bytes @param {number} carry @param {string} jobsJson WireJob[]
   * @param {string} kernelsJson code of each repack kernel */
  async upload(bytes, carry, jobsJson, kernelsJson) {
    const { device, epoch } = this.#player;
    const jobs = /** @type {WireJob[]} */ (JSON.parse(jobsJson));
    const repacks = await this.#repacks(jobs, kernelsJson);
    this.#player.checkEpoch(epoch);
    const length = Math.ceil(bytes.length / 4) * 4;
    const stage = await this.#stage(this.#count % STAGES, length);
    const raw = await this.#rawBuffer(this.#count % 2, CARRY + length);
    const parameters = await this.#parameters(jobs.filter((job) => job.repack));
    await this.#player.settle(stage.mapped);
    this.#player.checkEpoch(epoch);
    new Uint8Array(stage.buffer.getMappedRange()).set(bytes);
    stage.buffer.unmap();
    release(bytes);
    const encoder = device.createCommandEncoder();
    if (this.#carried) {
      encoder.copyBufferToBuffer(this.#raw[(this.#count + 1) % 2], this.#carried, raw, 0, CARRY);
    }
    encoder.copyBufferToBuffer(stage.buffer, 0, raw, CARRY, length);
    for (const job of jobs.filter((j) => !j.repack)) {
      const target = this.#player.buffer(job.buffers[0]);
      encoder.copyBufferToBuffer(raw, job.source, target, job.first, job.bytes);
    }
    this.#encode(encoder, repacks, raw, parameters);
    device.queue.submit([encoder.finish()]);
    parameters.destroy();
    stage.mapped = mapped(stage.buffer);
    this.#carried = carry && length;
    this.#count++;
  }

  /** @param {WireJob[]} jobs @param {string} kernelsJson @returns {Promise<Repack[]>} */
  #repacks(jobs, kernelsJson) {
    const kernels = /** @type {Record<string, WirePipeline>} */ (JSON.parse(kernelsJson));
    const wanted = jobs.filter((job) => job.repack);
    return Promise.all(
      wanted.map(async (job) => {
        const kernel = kernels[job.repack];
        return { job, kernel, pipeline: await this.#player.pipeline(kernel.code, kernel) };
      }),
    );
  }

  /** @param {number} i @param {number} size */
  async #stage(i, size) {
    if (!(this.#stages[i]?.buffer.size >= size)) {
      this.#stages[i]?.buffer.destroy();
      const usage = GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC;
      const buffer = await this.#player.create({ label: "staging", size, usage });
      this.#stages[i] = { buffer, mapped: mapped(buffer) };
    }
    return this.#stages[i];
  }

  /** @param {number} i @param {number} size */
  async #rawBuffer(i, size) {
    if (!(this.#raw[i]?.size >= size)) {
      this.#raw[i]?.destroy();
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      this.#raw[i] = await this.#player.create({ label: "shard", size, usage });
    }
    return this.#raw[i];
  }

  /** @param {GPUCommandEncoder} encoder @param {Repack[]} repacks @param {GPUBuffer} raw
   * @param {GPUBuffer} parameters */
  #encode(encoder, repacks, raw, parameters) {
    const { device } = this.#player;
    const pass = encoder.beginComputePass();
    for (const [i, { job, kernel, pipeline }] of repacks.entries()) {
      const outputs = job.buffers.map((name) => ({ buffer: this.#player.buffer(name) }));
      const offset = i * JOB_ALIGN;
      const resources = [{ buffer: parameters, offset, size: 16 }, { buffer: raw }, ...outputs];
      const entries = resources.map((resource, binding) => ({ binding, resource }));
      const layout = this.#player.layout(kernel.layout);
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
      pass.dispatchWorkgroups(...repackGrid(job.count));
    }
    pass.end();
  }

  /** To be destroyed after the submit. @param {WireJob[]} jobs */
  async #parameters(jobs) {
    const size = Math.max(1, jobs.length) * JOB_ALIGN;
    const usage = GPUBufferUsage.STORAGE;
    const buffer = await this.#player.create({ label: "jobs", size, usage, mappedAtCreation: true });
    const words = new Uint32Array(buffer.getMappedRange());
    for (const [i, job] of jobs.entries()) {
      const [x] = repackGrid(job.count);
      words.set([job.source, job.first, job.count, x * 64], (i * JOB_ALIGN) / 4);
    }
    buffer.unmap();
    return buffer;
  }

  /** Frees what the upload needed: all shards have come, or no more will. */
  close() {
    for (const buffer of this.#raw) buffer.destroy();
    for (const { buffer } of this.#stages) buffer.destroy();
    this.#raw = [];
    this.#stages = [];
    this.#carried = this.#count = 0;
  }
}

/** Frees the memory of a shard at once: garbage collection does not keep up with a load.
 * @param {Uint8Array} bytes */
function release(bytes) {
  /** @type {ArrayBuffer} */ (bytes.buffer).transfer(0);
}

/** Resolves when the buffer can be written to, or is gone. @param {GPUBuffer} buffer */
function mapped(buffer) {
  return buffer.mapAsync(GPUMapMode.WRITE).catch(() => undefined);
}

/** Workgroups of 64 blocks in x and y. @param {number} blocks @returns {[number, number]} */
function repackGrid(blocks) {
  const groups = Math.ceil(blocks / 64);
  const x = Math.min(groups, MAX_WORKGROUPS);
  return [x, Math.ceil(groups / x)];
}
