/** Fetching with retries, hashes, and errors that have a code. */

/** An error with a code of engine/errors.py. */
export class ShardError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {string} [hint]
   */
  constructor(code, message, hint = "") {
    super(message);
    this.name = "ShardError";
    this.code = code;
    this.hint = hint;
  }
}

/**
 * @param {BufferSource} bytes
 * @param {string | null} sha256 hex; null matches everything
 */
export async function matches(bytes, sha256) {
  if (sha256 === null) return true;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256;
}

/**
 * A fast checksum, as hex: four interleaved polynomials over the 32-bit words. It notices what a
 * disk may do to bytes whose SHA-256 was right when they were stored, at ten times the speed.
 *
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
export function checksum(bytes) {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length >> 2);
  const whole = words.length & ~3;
  let [a, b, c, d] = [bytes.length, 1, 2, 3];
  for (let i = 0; i < whole; i += 4) {
    a = (Math.imul(a, 31) + words[i]) | 0;
    b = (Math.imul(b, 31) + words[i + 1]) | 0;
    c = (Math.imul(c, 31) + words[i + 2]) | 0;
    d = (Math.imul(d, 31) + words[i + 3]) | 0;
  }
  for (const byte of bytes.subarray(whole * 4)) a = (Math.imul(a, 31) + byte) | 0;
  return [a, b, c, d].map((part) => (part >>> 0).toString(16).padStart(8, "0")).join("");
}

/**
 * A small file, asked for anew unless the server says that the kept one is current.
 *
 * @param {string} url
 * @param {AbortSignal} signal
 */
export async function fetchAll(url, signal) {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(30_000)]);
  const response = await fetch(url, { cache: "no-cache", signal: limit });
  checkStatus(response);
  return new Uint8Array(await response.arrayBuffer());
}

/**
 * Throws for a bad status: a final error where trying again is useless.
 *
 * @param {Response} response
 */
function checkStatus(response) {
  if (response.ok) return;
  const { status, url } = response;
  if (status >= 500 || status === 408 || status === 416 || status === 429) {
    throw new TypeError(`status ${status}`);
  }
  throw new ShardError("shard.network", `The server answered ${status} for ${url}.`);
}

/**
 * True if the response goes on at byte `filled`.
 *
 * @param {Response} response
 * @param {number} filled
 */
export function resumes(response, filled) {
  const start = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "");
  return response.status === 206 && Number(start?.[1] ?? filled) === filled;
}

/**
 * @param {Response} response
 * @returns {AsyncGenerator<Uint8Array>}
 */
export async function* parts(response) {
  checkStatus(response);
  const reader = response.body?.getReader();
  if (!reader) return;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/**
 * Runs a transfer that is given up when `alive` is not called for `stall_ms`.
 *
 * @param {number} stall_ms
 * @param {AbortSignal} outer
 * @param {(signal: AbortSignal, alive: () => void) => Promise<void>} transfer
 */
export async function withStallGuard(stall_ms, outer, transfer) {
  const inner = new AbortController();
  const giveUp = () => inner.abort(new TypeError("no data arrived"));
  const stop = () => inner.abort(outer.reason);
  let timer = setTimeout(giveUp, stall_ms);
  outer.addEventListener("abort", stop);
  try {
    await transfer(inner.signal, () => {
      clearTimeout(timer);
      timer = setTimeout(giveUp, stall_ms);
    });
  } catch (error) {
    inner.abort(error); // frees the connection
    throw error;
  } finally {
    clearTimeout(timer);
    outer.removeEventListener("abort", stop);
  }
}

/**
 * @param {unknown} error
 * @returns {ShardError}
 */
export function asNetwork(error) {
  if (error instanceof ShardError) return error;
  const reason = error instanceof Error ? error.message : String(error);
  return new ShardError(
    "shard.network",
    `The model could not be downloaded (${reason}).`,
    "Check the connection and try again: what has arrived is kept.",
  );
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, ms);
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    function done() {
      signal.removeEventListener("abort", abort);
      resolve();
    }
    signal.addEventListener("abort", abort, { once: true });
  });
}
