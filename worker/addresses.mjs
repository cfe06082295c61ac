/** A .gguf at an address, or split into several: by ranges, or in order from servers without. */

import { keptManifestUrl, layOut, modelName, partNames } from "./layout.mjs";
import { PARALLEL } from "./sources.mjs";
import { ShardError, checkStatus, parts, resumes, timeLimit } from "./transfer.mjs";

/**
 * @typedef {import("./sources.mjs").Source} Source
 * @typedef {import("./sources.mjs").Shard} Shard
 * @typedef {import("./sources.mjs").Transfer} Transfer
 * @typedef {{size: number, version: string, hasRanges: boolean}} Found
 * @typedef {{url: string, version: string, start: number, size: number}} Wanted bytes of a file
 */

const MAGIC = "GGUF";
const BY_HAND = "Download it by other means, and open the file.";

/** @implements {Source} */
export class AddressSource {
  parallel = PARALLEL;
  mayLackHashes = true;
  mayChange = true;
  manifestSha256 = null;
  manifestUrl;
  #urls;
  #name;
  /** What `describe` found out stays known. @type {Promise<unknown> | null} */
  #described = null;
  #inOrder = new InOrder();

  /**
   * @param {string} address of the file, or of any part of a split one
   * @param {string | null} sha256 of a whole file
   * @param {boolean} keep
   */
  constructor(address, sha256, keep) {
    const url = new URL(address);
    const paths = partNames(url.pathname);
    this.#urls = paths.map((path) => Object.assign(new URL(url), { pathname: path }).href);
    this.#name = modelName(decodeURIComponent(paths[0].split("/").pop() ?? ""));
    this.manifestUrl = keptManifestUrl(this.#urls[0]);
    this.sha256 = sha256;
    this.keep = keep;
  }

  /** @param {AbortSignal} signal */
  async describe(signal) {
    /** @type {Found[]} */
    const found = [];
    for (const url of this.#urls) found.push(await look(url, signal));
    this.parallel = found.every(({ hasRanges }) => hasRanges) ? PARALLEL : 1;
    this.#described = Promise.resolve();
    return layOut(this.#name, found);
  }

  /**
   * @param {Shard} shard
   * @param {number} from
   * @param {AbortSignal} signal
   * @returns {Promise<Transfer>}
   */
  async begin({ part = 0, start = 0, size, version = "" }, from, signal) {
    await (this.#described ??= this.describe(signal).catch((error) => {
      this.#described = null;
      throw error;
    }));
    const wanted = { url: this.#urls[part], version, start: start + from, size: size - from };
    if (this.parallel === 1) return { from, parts: this.#inOrder.read(wanted, signal) };
    const headers = { Range: `bytes=${wanted.start}-${start + size - 1}` };
    const response = await fetch(wanted.url, { cache: "no-store", headers, signal });
    checkStatus(response);
    checkVersion(response, version);
    if (!resumes(response, wanted.start)) throw new TypeError("the server sent other bytes");
    return { from, parts: parts(response) };
  }
}

/** One response of a server that knows no ranges, read by several shards after one another. */
class InOrder {
  #url = "";
  #position = 0;
  /** @type {AsyncIterator<Uint8Array> | null} */
  #parts = null;
  /** What was read of the file but belongs to the next shard. @type {Uint8Array} */
  #rest = new Uint8Array();
  #abort = new AbortController();
  /** Reads wait for one another. @type {Promise<unknown>} */
  #turn = Promise.resolve();

  /**
   * Bytes from `start` on; what comes before them is skipped.
   *
   * @param {Wanted} wanted
   * @param {AbortSignal} signal
   */
  async *read({ url, version, start, size }, signal) {
    const before = this.#turn;
    const { promise, resolve: handOver } = Promise.withResolvers();
    this.#turn = promise;
    const end = () => this.#end(signal.reason);
    let isWhole = false;
    try {
      await before;
      signal.throwIfAborted();
      signal.addEventListener("abort", end);
      if (!this.#parts || this.#url !== url || this.#position > start) {
        await this.#begin(url, version);
      }
      while (size) {
        const bytes = await this.#next();
        const skipped = Math.min(start - this.#position, bytes.length);
        const wanted = bytes.subarray(skipped, skipped + size);
        this.#position += skipped + wanted.length;
        this.#rest = bytes.subarray(skipped + wanted.length);
        start += wanted.length;
        size -= wanted.length;
        yield wanted; // an empty part too is a sign of life
      }
      isWhole = true;
    } finally {
      signal.removeEventListener("abort", end);
      if (!isWhole) this.#end(new TypeError("not read to its end"));
      handOver(undefined);
    }
  }

  /**
   * @param {string} url
   * @param {string} version
   */
  async #begin(url, version) {
    this.#end(new TypeError("not needed any longer"));
    this.#abort = new AbortController();
    const response = await fetch(url, { cache: "no-store", signal: this.#abort.signal });
    checkVersion(response, version);
    this.#parts = parts(response);
    this.#url = url;
  }

  /** @returns {Promise<Uint8Array>} */
  async #next() {
    if (this.#rest.length) return this.#rest;
    const next = await this.#parts?.next();
    if (!next || next.done) throw new TypeError(`ended after ${this.#position} bytes`);
    return next.value;
  }

  /** @param {unknown} reason */
  #end(reason) {
    this.#abort.abort(reason);
    this.#parts = null;
    this.#rest = new Uint8Array();
    this.#position = 0;
  }
}

/**
 * What the server says of a file, whose first bytes are looked at.
 *
 * @param {string} url
 * @param {AbortSignal} outer
 * @returns {Promise<Found>}
 */
async function look(url, outer) {
  const { signal, end } = timeLimit(outer);
  try {
    const headers = { Range: `bytes=0-${MAGIC.length - 1}` };
    const response = await fetch(url, { cache: "no-store", headers, signal });
    checkStatus(response);
    await checkMagic(response);
    const hasRanges = response.status === 206 && resumes(response, 0);
    const size = hasRanges ? await rangedSize(response, signal) : lengthOf(response);
    if (!size) {
      throw new ShardError("shard.network", `The server does not say how large ${url} is.`, BY_HAND);
    }
    return { size, version: markOf(response) ?? `${size} bytes`, hasRanges };
  } finally {
    end(); // of a whole file that came, nothing more is wanted
  }
}

/**
 * What tells one version of a file from another, if the server does.
 *
 * @param {Response} response
 */
function markOf({ headers }) {
  return headers.get("ETag") ?? headers.get("Last-Modified");
}

/**
 * @param {Response} response
 * @param {string} version
 */
function checkVersion(response, version) {
  const mark = markOf(response);
  if (mark === null || mark === version) return;
  throw new ShardError("shard.hash", `The file at ${response.url} has changed meanwhile.`);
}

/** @param {Response} response */
async function checkMagic(response) {
  let begin = "";
  for await (const bytes of parts(response)) {
    begin += String.fromCharCode(...bytes.subarray(0, MAGIC.length));
    if (begin.length >= MAGIC.length) break;
  }
  if (begin.startsWith(MAGIC)) return;
  const isPage = (response.headers.get("Content-Type") ?? "").startsWith("text/html");
  throw new ShardError(
    "gguf.invalid",
    `${response.url} is ${isPage ? "a web page" : "something else"}, not a GGUF file.`,
    "Give the address that the file itself is downloaded from.",
  );
}

/**
 * @param {Response} response
 * @param {AbortSignal} signal
 */
async function rangedSize(response, signal) {
  const total = /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
  if (total) return Number(total[1]);
  // Other sites' servers must allow that header to be read; the length is always allowed.
  return lengthOf(await fetch(response.url, { method: "HEAD", cache: "no-store", signal }));
}

/** @param {Response} response */
function lengthOf(response) {
  return Number(response.headers.get("Content-Length") ?? 0);
}
