// Shards on their way into the weights: through mapped staging buffers to a raw buffer on the GPU,
// where kernels split the file's blocks into planes.

import { release } from "./transfer.mjs";

/**
 * @typedef {import("./gpu.mjs").WireJob} WireJob
 * @typedef {import("./gpu.mjs").WirePipeline} WirePipeline
 * @typedef {{job: WireJob, kernel: WirePipeline, pipeline: GPUComputePipeline}} Repack
 * @typedef {object} Place what a shard goes through
 * @property {GPUBuffer} stage mapped again and again, which is several times faster than making
 *   mapped buffers
 * @property {Promise<void | undefined>} mapped
 * @property {GPUBuffer} raw the shard on the GPU
 * @property {GPUBuffer} jobs
 *
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
const PLACES = 2; // one is filled while the GPU copies from the other
const JOB_ALIGN = 256; // minimum alignment of a storage binding's offset
const MAX_WORKGROUPS = 65535;
const JOBS = 1024; // of a shard, for which there is room from the beginning

export class Uploads {
  #player;
  /** That repack weights, by name. @type {Record<string, WirePipeline>} */
  kernels = {};
  /** Shards go through them by turns: this one, and the one before. @type {Promise<Place>[]} */
  #places = [];
  /** @type {GPUBuffer[]} */
  #buffers = [];
  #count = 0;
  /** Bytes of the last shard if its end belongs to the next one, else 0. */
  #carried = 0;

  /** @param {Player} player */
  constructor(player) {
    this.#player = player;
  }

  /** Begins to make what `count` shards go through, which takes longer than to use it.
   * @param {number} bytes of the largest shard @param {number} count */
  begin(bytes, count) {
    for (let i = 0; i < Math.min(count, PLACES); i++) this.#places[i] = this.#make(bytes, JOBS);
  }

  /** Takes the next shard of a model: puts it on the GPU and repacks the weights in it. The last
   * bytes stay for the next shard if `carry`, whose first block they begin. Resolves when the
   * shard is on its way: the next one can be read meanwhile.
   * @param {Uint8Array} bytes @param {number} carry @param {string} jobsJson WireJob[] */
  async upload(bytes, carry, jobsJson) {
    const { device, epoch } = this.#player;
    const jobs = /** @type {WireJob[]} */ (JSON.parse(jobsJson));
    const length = Math.ceil(bytes.length / 4) * 4;
    const [before, at] = [(this.#count + 1) % PLACES, this.#count % PLACES];
    const [place, repacks] = await Promise.all([
      this.#place(at, length, Math.max(JOBS, jobs.length)),
      this.#repacks(jobs),
    ]);
    await this.#player.settle(place.mapped);
    this.#player.checkEpoch(epoch);
    new Uint8Array(place.stage.getMappedRange(0, length)).set(bytes);
    place.stage.unmap();
    release(bytes);
    const encoder = device.createCommandEncoder();
    if (this.#carried) {
      const { raw } = await this.#places[before];
      encoder.copyBufferToBuffer(raw, this.#carried, place.raw, 0, CARRY);
    }
    encoder.copyBufferToBuffer(place.stage, 0, place.raw, CARRY, length);
    for (const job of jobs.filter((j) => !j.repack)) {
      const target = this.#player.buffer(job.buffers[0]);
      encoder.copyBufferToBuffer(place.raw, job.source, target, job.first, job.bytes);
    }
    this.#encode(encoder, repacks, place);
    device.queue.submit([encoder.finish()]);
    place.mapped = mapped(place.stage);
    this.#carried = carry && length;
    this.#count++;
  }

  /** @param {WireJob[]} jobs @returns {Promise<Repack[]>} */
  async #repacks(jobs) {
    const wanted = jobs.filter((job) => job.repack);
    const names = [...new Set(wanted.map(({ repack }) => repack))];
    const compiled = names.map(async (name) => {
      const kernel = this.kernels[name];
      return { name, kernel, pipeline: await this.#player.pipeline(kernel.code, kernel) };
    });
    const known = Object.fromEntries((await Promise.all(compiled)).map((it) => [it.name, it]));
    return wanted.map((job) => ({ job, ...known[job.repack] }));
  }

  /** Place `i`, made anew if it is too small.
   * @param {number} i @param {number} bytes of a shard @param {number} jobs */
  async #place(i, bytes, jobs) {
    const known = await this.#places[i];
    if (known && known.stage.size >= bytes && known.jobs.size >= jobs * JOB_ALIGN) return known;
    for (const buffer of known ? [known.stage, known.raw, known.jobs] : []) buffer.destroy();
    this.#places[i] = this.#make(bytes, jobs);
    return this.#places[i];
  }

  /** @param {number} bytes of a shard @param {number} jobs @returns {Promise<Place>} */
  #make(bytes, jobs) {
    const { COPY_DST, COPY_SRC, MAP_WRITE, STORAGE } = GPUBufferUsage;
    const size = Math.ceil(bytes / 4) * 4;
    const place = Promise.all([
      this.#buffer("staging", size, MAP_WRITE | COPY_SRC),
      this.#buffer("shard", CARRY + size, STORAGE | COPY_SRC | COPY_DST),
      this.#buffer("jobs", jobs * JOB_ALIGN, STORAGE | COPY_DST),
    ]).then(([stage, raw, list]) => ({ stage, mapped: mapped(stage), raw, jobs: list }));
    place.catch(() => {}); // whoever waits for it hears of it
    return place;
  }

  /** @param {string} label @param {number} size @param {number} usage */
  async #buffer(label, size, usage) {
    const buffer = await this.#player.create({ label, size, usage });
    this.#buffers.push(buffer);
    return buffer;
  }

  /** @param {GPUCommandEncoder} encoder @param {Repack[]} repacks @param {Place} place */
  #encode(encoder, repacks, place) {
    const { device } = this.#player;
    const words = new Uint32Array((repacks.length * JOB_ALIGN) / 4);
    const pass = encoder.beginComputePass();
    for (const [i, { job, kernel, pipeline }] of repacks.entries()) {
      const [x, y] = repackGrid(job.count);
      const offset = i * JOB_ALIGN;
      words.set([job.source, job.first, job.count, x * 64], offset / 4);
      const outputs = job.buffers.map((name) => ({ buffer: this.#player.buffer(name) }));
      const resources = [{ buffer: place.jobs, offset, size: 16 }, { buffer: place.raw }, ...outputs];
      const entries = resources.map((resource, binding) => ({ binding, resource }));
      const layout = this.#player.layout(kernel.layout);
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
      pass.dispatchWorkgroups(x, y);
    }
    pass.end();
    device.queue.writeBuffer(place.jobs, 0, words);
  }

  /** Frees what the upload needed: all shards have come, or no more will. */
  close() {
    for (const buffer of this.#buffers) buffer.destroy();
    this.#buffers = [];
    this.#places = [];
    this.#carried = this.#count = 0;
  }
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
