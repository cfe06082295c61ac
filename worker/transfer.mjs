/** Fetching, hashes, and errors that have a code. */

const SHORT_TRANSFER_MS = 30_000;
const LONGEST_DELAY_MS = 60_000; // that a server may ask for

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
  const limit = timeLimit(signal);
  try {
    const response = await fetch(url, { cache: "no-cache", signal: limit.signal });
    checkStatus(response);
    return new Uint8Array(await response.arrayBuffer());
  } finally {
    limit.end();
  }
}

/**
 * A signal for one short transfer: `end` ends what of it is still under way.
 *
 * @param {AbortSignal} outer
 */
export function timeLimit(outer) {
  const ended = new AbortController();
  const limit = AbortSignal.timeout(SHORT_TRANSFER_MS);
  return { signal: AbortSignal.any([outer, limit, ended.signal]), end: () => ended.abort() };
}

/** The server wants to be asked again later. */
export class BusyError extends TypeError {
  /** @param {Response} response */
  constructor({ status, headers }) {
    super(`the server answered ${status}${status === 429 ? ", too many requests" : ""}`);
    const seconds = Number(headers.get("Retry-After") ?? 0); // a date is as good as nothing
    this.delay_ms = Math.min(Math.max(seconds * 1000, 0) || 0, LONGEST_DELAY_MS);
  }
}

/**
 * Throws for a bad status: a final error where trying again is useless.
 *
 * @param {Response} response
 */
export function checkStatus(response) {
  if (response.ok) return;
  const { status, url } = response;
  if (status >= 500 || status === 408 || status === 416 || status === 429) {
    throw new BusyError(response);
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
 * @param {unknown} error
 * @returns {ShardError}
 */
export function asNetwork(error) {
  if (error instanceof ShardError) return error;
  const reason = error instanceof Error ? error.message : String(error);
  return new ShardError(
    "shard.network",
    `The model could not be downloaded (${reason}).`,
    "Check the connection and try again: what has arrived is kept. Another site must also allow " +
      "pages to read its files (CORS).",
  );
}

/**
 * Frees the memory of bytes that nobody needs any longer: in a load, garbage collection comes late.
 *
 * @param {Uint8Array} bytes
 */
export function release(bytes) {
  /** @type {ArrayBuffer} */ (bytes.buffer).transfer(0);
}
