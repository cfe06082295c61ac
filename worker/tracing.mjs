// A plan call by call: what each call wrote, before another one writes over it.

/**
 * @typedef {import("./gpu.mjs").Dispatch} Dispatch
 * @typedef {{buffer: string, bytes: number}} WireRead the first `bytes` of a buffer
 * @typedef {object} Player what is needed of the player
 * @property {GPUDevice} device
 * @property {(pass: GPUComputePassEncoder, plan: Dispatch[], tokens: number) => void} encode
 * @property {(name: string, offset: number, bytes: number) => Promise<Uint8Array>} read
 */

/** Runs one dispatch by itself, and reads what it wrote.
 * @param {Player} player @param {Dispatch} dispatch @param {number} tokens of the step
 * @param {WireRead[]} reads @returns {Promise<Uint8Array[]>} */
export async function trace(player, dispatch, tokens, reads) {
  const encoder = player.device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  player.encode(pass, [dispatch], tokens);
  pass.end();
  player.device.queue.submit([encoder.finish()]);
  return Promise.all(reads.map(({ buffer, bytes }) => player.read(buffer, 0, bytes)));
}

/** Six numbers of f32 values, those of `Summary` in engine/backends/summary.py.
 * @param {Uint8Array} bytes */
export function summarize(bytes) {
  const values = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  let [notFinite, low, high, sum, squares] = [0, Infinity, -Infinity, 0, 0];
  for (const value of values) {
    if (!Number.isFinite(value)) {
      notFinite++;
      continue;
    }
    low = Math.min(low, value);
    high = Math.max(high, value);
    sum += value;
    squares += value * value;
  }
  const finite = values.length - notFinite;
  if (!finite) return [values.length, notFinite, 0, 0, 0, 0];
  return [values.length, notFinite, low, high, sum / finite, Math.sqrt(squares / finite)];
}
