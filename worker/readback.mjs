// Copies of what the GPU wrote, for the processor. The buffers for them are used again: to make one
// takes a way to the GPU's process and back, which is longer than many a step.

import { memoryError, scoped } from "./buffers.mjs";

/**
 * @typedef {{source: GPUBuffer, offset: number, bytes: number}} Part bytes of a buffer: `offset` is a
 *   multiple of 4
 * @typedef {{buffer: GPUBuffer, failed: Promise<unknown>}} Place and what was wrong with making it
 * @typedef {(encoder: GPUCommandEncoder) => void} Copy
 */

const SMALLEST = 1024;
const LARGEST_SPARE = 1 << 20; // bytes; what is larger is made anew each time
const MOST_SPARES = 8;

export class Readback {
  #device;
  #held;
  /** @type {Place[]} */
  #spares = [];

  /** @param {GPUDevice} device @param {() => number} held bytes of the device in use, for errors */
  constructor(device, held) {
    this.#device = device;
    this.#held = held;
  }

  /** A copy of parts of buffers: `encode` records it, behind what writes them; once that is
   * submitted, `read` waits for the bytes.
   * @param {Part[]} parts @returns {{encode: Copy, read: () => Promise<Uint8Array[]>}} */
  copy(parts) {
    const sizes = parts.map(({ bytes }) => Math.ceil(bytes / 4) * 4);
    const starts = sizes.map((_, i) => sizes.slice(0, i).reduce((sum, size) => sum + size, 0));
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const place = this.#take(total);
    return {
      encode: (encoder) => {
        for (const [i, { source, offset }] of parts.entries()) {
          encoder.copyBufferToBuffer(source, offset, place.buffer, starts[i], sizes[i]);
        }
      },
      read: async () => {
        const bytes = await this.#read(place, total);
        return parts.map((part, i) => bytes.subarray(starts[i], starts[i] + part.bytes));
      },
    };
  }

  /** @param {Place} place @param {number} bytes */
  async #read({ buffer, failed }, bytes) {
    const error = await failed;
    if (error) throw memoryError(error, buffer.size, this.#held());
    await buffer.mapAsync(GPUMapMode.READ, 0, bytes);
    const copied = new Uint8Array(buffer.getMappedRange(0, bytes)).slice();
    buffer.unmap();
    this.#give({ buffer, failed });
    return copied;
  }

  /** @param {number} bytes @returns {Place} */
  #take(bytes) {
    const i = this.#spares.findIndex(({ buffer }) => buffer.size >= bytes);
    if (i >= 0) return this.#spares.splice(i, 1)[0];
    const size = SMALLEST * 2 ** Math.max(0, Math.ceil(Math.log2(bytes / SMALLEST)));
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const { made, failed } = scoped(this.#device, () =>
      this.#device.createBuffer({ label: "readback", size: bytes > LARGEST_SPARE ? bytes : size, usage }));
    return { buffer: /** @type {GPUBuffer} */ (made), failed };
  }

  /** Spares stay in the order of their sizes. @param {Place} place */
  #give(place) {
    if (place.buffer.size > LARGEST_SPARE) return place.buffer.destroy();
    this.#spares.push(place);
    this.#spares.sort((a, b) => a.buffer.size - b.buffer.size);
    if (this.#spares.length > MOST_SPARES) this.#spares.shift()?.buffer.destroy();
  }

  /** Frees the spares. */
  close() {
    for (const { buffer } of this.#spares) buffer.destroy();
    this.#spares = [];
  }
}
