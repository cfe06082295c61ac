// The buffers of a model on the GPU, by name: plans bind them by it.

/** @typedef {import("./gpu.mjs").WireBuffer} WireBuffer */

/** An error with a stable code that Python passes on. */
export class GpuError extends Error {
  /** @param {string} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** What `make` makes on a device, and what was wrong with it, which is known a little later.
 * @template T @param {GPUDevice} device @param {() => T} make */
export function scoped(device, make) {
  device.pushErrorScope("out-of-memory");
  device.pushErrorScope("validation");
  let made = /** @type {T | null} */ (null);
  /** @type {unknown} */
  let thrown = null; // by the browser, which has not the memory for a mapped buffer
  try {
    made = make();
  } catch (error) {
    thrown = error;
  }
  // Both are closed now: somebody else may open one while the answers are waited for.
  const errors = Promise.all([device.popErrorScope(), device.popErrorScope()]);
  const failed = errors.then(([invalid, memory]) => thrown ?? memory ?? invalid);
  failed.catch(() => {}); // of a lost device, which those who wait for it hear of
  return { made, failed };
}

/** @param {any} error @param {number} wanted bytes @param {number} held bytes */
export function memoryError(error, wanted, held) {
  const [more, had] = [wanted, held].map((bytes) => bytes.toLocaleString("en"));
  const message = `The GPU refused ${more} bytes of memory beside ${had} that are held: ${error.message}`;
  return new GpuError("memory.device", message);
}

export class Buffers {
  #device;
  /** @type {Map<string, GPUBuffer>} */
  #buffers = new Map();
  /** @type {Map<string, number>} */
  #bytesByLabel = new Map();

  /** @param {GPUDevice} device */
  constructor(device) {
    this.#device = device;
  }

  /** @param {string} name @returns {GPUBuffer} */
  get(name) {
    const buffer = this.#buffers.get(name);
    if (!buffer) throw new GpuError("internal", `There is no buffer ${name}.`);
    return buffer;
  }

  /** Bytes held by label. @returns {Record<string, number>} */
  bytes() {
    return Object.fromEntries(this.#bytesByLabel);
  }

  /** Creates buffers, zeroed; one that is there and large enough stays, one that is too small goes,
   * and with it the plans that are bound to it. If the GPU refuses one, it has none of them.
   * @param {WireBuffer[]} wanted */
  async allocate(wanted) {
    const missing = wanted.filter(({ name, bytes }) => (this.#buffers.get(name)?.size ?? 0) < bytes);
    for (const it of missing) this.#drop(it);
    const held = this.held;
    const { buffers, failed } = this.#create(missing);
    buffers.forEach((buffer, i) => this.#put(missing[i], buffer)); // now, so that `clear` finds them
    const error = await failed;
    if (!error) return;
    missing.forEach((it, i) => {
      if (this.#buffers.get(it.name) === buffers[i]) this.#drop(it);
    });
    throw memoryError(error, missing.reduce((sum, { bytes }) => sum + bytes, 0), held);
  }

  /** Bytes of all of them. */
  get held() {
    return [...this.#bytesByLabel.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  /** Larger buffers for what is there, still beside it; null if the GPU has not the memory for all.
   * @param {WireBuffer[]} wanted @returns {Promise<GPUBuffer[] | null>} */
  async tryLarger(wanted) {
    const { buffers, failed } = this.#create(wanted);
    if (!(await failed)) return buffers;
    for (const buffer of buffers) buffer.destroy();
    return null;
  }

  /** Puts larger buffers in the place of those of the same names: a WebGPU buffer cannot grow.
   * Contents are copied in the order of the queue: what was submitted before still writes to the
   * old buffers and is copied, what comes after sees the new ones.
   * @param {WireBuffer[]} wanted @param {GPUBuffer[]} larger of `tryLarger` */
  replace(wanted, larger) {
    const old = wanted.map(({ name }) => this.get(name));
    const encoder = this.#device.createCommandEncoder();
    old.forEach((buffer, i) => encoder.copyBufferToBuffer(buffer, 0, larger[i], 0, buffer.size));
    this.#device.queue.submit([encoder.finish()]);
    wanted.forEach((it, i) => this.#put(it, larger[i]));
    for (const buffer of old) buffer.destroy(); // what was submitted still ends
  }

  /** Frees all of them. */
  clear() {
    for (const buffer of this.#buffers.values()) buffer.destroy();
    this.#buffers.clear();
    this.#bytesByLabel.clear();
  }

  /** Buffers, and what was wrong with them, which is known a little later.
   * @param {WireBuffer[]} wanted */
  #create(wanted) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const { made, failed } = scoped(this.#device, () => wanted.map(({ name, bytes }) =>
      this.#device.createBuffer({ label: name, size: Math.max(16, Math.ceil(bytes / 16) * 16), usage })));
    return { buffers: made ?? [], failed };
  }

  /** @param {WireBuffer} wanted */
  #drop({ name, label }) {
    const buffer = this.#buffers.get(name);
    if (!buffer) return;
    buffer.destroy(); // what was submitted still ends
    this.#buffers.delete(name);
    this.#bytesByLabel.set(label, (this.#bytesByLabel.get(label) ?? 0) - buffer.size);
  }

  /** @param {WireBuffer} wanted @param {GPUBuffer} buffer */
  #put({ name, label }, buffer) {
    const more = buffer.size - (this.#buffers.get(name)?.size ?? 0);
    this.#buffers.set(name, buffer);
    this.#bytesByLabel.set(label, (this.#bytesByLabel.get(label) ?? 0) + more);
  }
}
