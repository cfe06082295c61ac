/**
 * One model file on its way: a GGUF cut into shards, described by a manifest.
 *
 * Shards download four at a time and go into the Cache API once their SHA-256 is right. Only a
 * window of shards, from the one being read onwards, stays in memory: the engine reads in order.
 * Reading takes a shard from the window, the cache or the network, whatever has it right.
 */

import { keptHeaders, openCache } from "./kept.mjs";
import { parseManifest } from "./manifest.mjs";
import { Readers } from "./readers.mjs";
import {
  ShardError, asNetwork, fetchAll, matches, parts, resumes, sleep, withStallGuard,
} from "./transfer.mjs";

const PARALLEL = 4;
const WINDOW = 4; // the shard being read and those after it, hashed meanwhile

const PROGRESS_INTERVAL_MS = 100;

/**
 * @typedef {import("./manifest.mjs").Entry} Entry
 * @typedef {(loaded: number, total: number) => void} OnProgress bytes
 * @typedef {object} Retry
 * @property {number} attempts per shard, on network errors
 * @property {number} delay_ms before the second attempt; doubles each time
 * @property {number} stall_ms an attempt without any byte for so long counts as failed
 */

/** @type {Retry} */
export const RETRY = { attempts: 5, delay_ms: 500, stall_ms: 30_000 };

/** One model being fetched. */
export class Download {
  cached = true;
  failed = false;
  replaced = false;
  /** @type {Promise<string>} */
  manifestText;
  #abort = new AbortController();
  #entry;
  #retry;
  /** @type {Cache | null} */
  #cache = null;
  /** @type {import("./manifest.mjs").Shard[]} */
  #shards = [];
  /** Bytes at hand per shard: its size if stored. @type {number[]} */
  #bytes = [];
  /** Shards that lie in the cache. @type {Set<number>} */
  #stored = new Set();
  /** In flight, or held for reading. @type {Map<number, Promise<Uint8Array>>} */
  #jobs = new Map();
  #readers = new Readers();
  #running = 0;
  #first = 0; // of the window
  /** @type {OnProgress | null} */
  #listener = null;
  #lastProgress = 0;

  /**
   * @param {Entry} entry
   * @param {Retry} retry
   */
  constructor(entry, retry) {
    this.#entry = entry;
    this.#retry = retry;
    this.manifestText = this.#open();
    this.manifestText.catch(() => (this.failed = true));
  }

  /**
   * Whether this is the download of `entry`, and no useless one.
   *
   * @param {Entry} entry
   */
  continues({ url, sha256 }) {
    return !this.failed && url === this.#entry.url && sha256 === this.#entry.sha256;
  }

  /** @param {OnProgress} listener */
  listen(listener) {
    this.#listener = listener;
    this.#report(true);
  }

  cancel() {
    this.failed = true;
    this.#listener = null;
    this.#abort.abort(cancelled());
    this.#jobs.clear();
    this.#readers.close();
  }

  /**
   * @param {number} i
   * @returns {Promise<Uint8Array>}
   */
  async read(i) {
    await this.manifestText;
    this.#abort.signal.throwIfAborted();
    if (!this.#shards[i]) throw new ShardError("request.invalid", `There is no shard ${i}.`);
    this.#moveWindow(i);
    try {
      const bytes = await this.#job(i);
      const isLast = i === this.#shards.length - 1;
      if (isLast && this.#stored.has(i)) this.#moveWindow(i + 1); // nothing is held afterwards
      if (isLast) this.#readers.close();
      return bytes;
    } catch (error) {
      this.#jobs.delete(i); // so that a later read tries again
      if (!this.#abort.signal.aborted && (await this.#isReplaced())) {
        this.replaced = this.failed = true;
      }
      throw error;
    }
  }

  /**
   * True if the server has another manifest than the one in use, which is not kept any longer.
   * One that the catalogue knows by its hash is never in doubt.
   */
  async #isReplaced() {
    const { url, sha256 } = this.#entry;
    if (sha256) return false;
    try {
      const text = new TextDecoder().decode(await fetchAll(url, this.#abort.signal));
      if (text === (await this.manifestText)) return false;
      await this.#cache?.delete(url);
      return true;
    } catch {
      return false; // offline, for example: what went wrong before is worth more
    }
  }

  /** @param {number} first */
  #moveWindow(first) {
    this.#first = first;
    for (const i of this.#jobs.keys()) {
      if (i < first || (this.#stored.has(i) && !this.#inWindow(i))) this.#jobs.delete(i);
    }
    this.#pump();
  }

  /** @param {number} i */
  #inWindow(i) {
    return i >= this.#first && i < this.#windowEnd();
  }

  /** Without a cache, what is fetched ahead must be held: as much as is fetched at once. */
  #windowEnd() {
    return Math.min(this.#first + (this.cached ? WINDOW : PARALLEL), this.#shards.length);
  }

  async #open() {
    this.#cache = await openCache();
    if (!this.#cache) this.cached = false;
    const text = await this.#fetchManifest();
    this.#shards = parseManifest(text).shards;
    await this.#findStored();
    this.#report(true);
    this.#pump();
    return text;
  }

  async #fetchManifest() {
    const { url, sha256 } = this.#entry;
    const kept = await (await this.#cache?.match(url))?.text();
    if (kept !== undefined && (await matches(new TextEncoder().encode(kept), sha256))) return kept;
    const bytes = await this.#withRetries(() => fetchAll(url, this.#abort.signal));
    if (!(await matches(bytes, sha256))) {
      throw new ShardError(
        "manifest.invalid",
        "The model manifest is not the one this page expects.",
        "Reload the page: the site may have been updated.",
      );
    }
    const text = new TextDecoder().decode(bytes);
    parseManifest(text);
    await this.#store(url, bytes, "application/json");
    return text;
  }

  async #findStored() {
    const keys = new Set((await this.#cache?.keys())?.map((request) => request.url));
    this.#bytes = this.#shards.map((shard, i) => {
      if (!keys.has(this.#url(i))) return 0;
      this.#stored.add(i);
      return shard.size;
    });
  }

  /** Starts jobs up to the limit: first the window, then what is missing. */
  #pump() {
    while (this.#running < PARALLEL && !this.#abort.signal.aborted) {
      const i = this.#nextShard();
      if (i < 0) return;
      this.#job(i).catch(() => {}); // a failed job stays in the map for its reader
    }
  }

  #nextShard() {
    for (let i = this.#first; i < this.#windowEnd(); i++) {
      if (!this.#jobs.has(i)) return i;
    }
    if (!this.cached) return -1; // nowhere to put more
    return this.#shards.findIndex((_, i) => !this.#stored.has(i) && !this.#jobs.has(i));
  }

  /**
   * @param {number} i
   * @returns {Promise<Uint8Array>}
   */
  #job(i) {
    const known = this.#jobs.get(i);
    if (known) return known;
    this.#running++;
    const job = this.#load(i).finally(() => {
      this.#running--;
      if (this.#stored.has(i) && !this.#inWindow(i)) this.#jobs.delete(i);
      this.#pump();
    });
    this.#jobs.set(i, job);
    return job;
  }

  /** @param {number} i */
  async #load(i) {
    const bytes = (await this.#loadCached(i)) ?? (await this.#loadRemote(i));
    this.#abort.signal.throwIfAborted();
    return bytes;
  }

  /** @param {number} i */
  async #loadCached(i) {
    if (!this.#stored.has(i) || !this.#cache) return null;
    try {
      const { sha256 } = this.#shards[i];
      const bytes = await this.#readers.read({ url: this.#url(i), sha256 });
      if (bytes) return bytes;
      await this.#cache.delete(this.#url(i));
    } catch {
      // an unreadable cache entry is as good as none
    }
    this.#stored.delete(i);
    this.#count(i, 0);
    return null;
  }

  /** @param {number} i */
  async #loadRemote(i) {
    const shard = this.#shards[i];
    for (let attempt = 0; attempt < 2; attempt++) {
      const bytes = await this.#fetchShard(i);
      if (await matches(bytes, shard.sha256)) {
        const headers = keptHeaders(shard.sha256, bytes);
        if (await this.#store(this.#url(i), bytes, "application/octet-stream", headers)) {
          this.#stored.add(i);
        }
        return bytes;
      }
      this.#count(i, 0);
    }
    throw this.#wrongShard(i);
  }

  /** @param {number} i */
  #wrongShard(i) {
    return new ShardError(
      "shard.hash",
      `Part ${i} of the model (${this.#shards[i].name}) does not match its hash.`,
      "The file on the server is damaged, or something on the way changed it.",
    );
  }

  /**
   * The bytes of shard `i` from the network, unverified. An interrupted transfer goes on where it
   * ended if the server understands Range.
   *
   * @param {number} i
   */
  #fetchShard(i) {
    const bytes = new Uint8Array(this.#shards[i].size);
    let filled = 0;
    const url = this.#url(i);
    return this.#withRetries(async () => {
      await withStallGuard(this.#retry.stall_ms, this.#abort.signal, async (signal, alive) => {
        const headers = filled ? { Range: `bytes=${filled}-` } : undefined;
        const response = await fetch(url, { cache: "no-store", headers, signal });
        if (!resumes(response, filled)) filled = 0;
        for await (const part of parts(response)) {
          alive();
          if (filled + part.length > bytes.length) throw this.#wrongShard(i);
          bytes.set(part, filled);
          filled += part.length;
          this.#count(i, filled);
        }
      });
      if (filled < bytes.length) throw new TypeError(`ended after ${filled} bytes`);
      return bytes;
    });
  }

  /**
   * @template T
   * @param {() => Promise<T>} task
   * @returns {Promise<T>}
   */
  async #withRetries(task) {
    for (let attempt = 1; ; attempt++) {
      try {
        return await task();
      } catch (error) {
        this.#abort.signal.throwIfAborted();
        if (error instanceof ShardError || attempt >= this.#retry.attempts) throw asNetwork(error);
        await sleep(this.#retry.delay_ms * 2 ** (attempt - 1), this.#abort.signal);
      }
    }
  }

  /**
   * Keeps bytes in the cache; false if there is none or it is full.
   *
   * @param {string} url
   * @param {Uint8Array<ArrayBuffer>} bytes
   * @param {string} type
   * @param {Record<string, string>} [more] headers
   */
  async #store(url, bytes, type, more = {}) {
    if (!this.#cache || !this.cached) return false;
    const headers = { "Content-Type": type, "Content-Length": String(bytes.length), ...more };
    try {
      await this.#cache.put(url, new Response(bytes, { headers }));
      return true;
    } catch {
      this.cached = false;
      return false;
    }
  }

  /** @param {number} i */
  #url(i) {
    return new URL(this.#shards[i].name, this.#entry.url).href;
  }

  /**
   * @param {number} i
   * @param {number} bytes
   */
  #count(i, bytes) {
    this.#bytes[i] = bytes;
    this.#report(bytes === this.#shards[i].size);
  }

  /** @param {boolean} now also if the last report was a moment ago */
  #report(now) {
    if (!this.#listener || !this.#bytes.length) return;
    if (!now && performance.now() - this.#lastProgress < PROGRESS_INTERVAL_MS) return;
    this.#lastProgress = performance.now();
    const loaded = this.#bytes.reduce((sum, n) => sum + n, 0);
    const total = this.#shards.reduce((sum, shard) => sum + shard.size, 0);
    try {
      this.#listener(loaded, total);
    } catch {
      this.#listener = null; // a listener that is gone must not end the download
    }
  }
}

export function cancelled() {
  return new ShardError("request.cancelled", "The download was stopped.");
}
