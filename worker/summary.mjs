// What a tensor holds, in few numbers.

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
