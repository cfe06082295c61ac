/** What the browser keeps of one model: its manifest and its shards, each at its address. */

import { openCache } from "./kept.mjs";
import { matches } from "./transfer.mjs";

const VERIFIED = "X-Octavo-Verified"; // header of a kept manifest: the SHA-256 of the whole file

export class Shelf {
  /** False once nothing is kept any longer: the browser refuses, or the model is not to be. */
  keeps = false;
  /** Whether it refused, for lack of room. */
  isFull = false;
  #manifestUrl;
  /** @type {Cache | null} */
  #cache = null;

  /** @param {string} manifestUrl */
  constructor(manifestUrl) {
    this.#manifestUrl = manifestUrl;
  }

  /** @param {boolean} keep */
  async open(keep) {
    this.#cache = await openCache();
    this.keeps = Boolean(this.#cache) && keep;
  }

  /**
   * The manifest, if it is kept and right; `verified` is the hash that the file was found to have.
   *
   * @param {string | null} sha256 of the manifest
   * @returns {Promise<{text: string, verified: string | null} | null>}
   */
  async manifest(sha256) {
    const response = await this.#cache?.match(this.#manifestUrl);
    if (!response) return null;
    const bytes = new Uint8Array(await response.arrayBuffer());
    if (!(await matches(bytes, sha256))) return null;
    return { text: new TextDecoder().decode(bytes), verified: response.headers.get(VERIFIED) };
  }

  /**
   * @param {string} text
   * @param {string} verified hash that the file was found to have; may be empty
   */
  putManifest(text, verified) {
    const headers = { "Content-Type": "application/json", ...(verified && { [VERIFIED]: verified }) };
    return this.#put(this.#manifestUrl, new TextEncoder().encode(text), headers);
  }

  /**
   * @param {string[]} names
   * @returns {Promise<boolean[]>} which of these shards are here
   */
  async has(names) {
    const keys = new Set((await this.#cache?.keys())?.map(({ url }) => url));
    return names.map((name) => keys.has(this.url(name)));
  }

  /**
   * Keeps a shard; false if that cannot be done, now and later. Without its manifest, which somebody
   * has deleted with all that was kept, nobody would find it.
   *
   * @param {string} name
   * @param {Uint8Array<ArrayBuffer>} bytes
   * @param {Record<string, string>} headers
   */
  async put(name, bytes, headers) {
    if (!(await this.#cache?.match(this.#manifestUrl))) this.keeps = false;
    return this.#put(this.url(name), bytes, headers);
  }

  /**
   * @param {string} url
   * @param {Uint8Array<ArrayBuffer>} bytes
   * @param {Record<string, string>} more headers
   */
  async #put(url, bytes, more) {
    if (!this.#cache || !this.keeps) return false;
    const headers = { "Content-Length": String(bytes.length), ...more };
    try {
      await this.#cache.put(url, new Response(bytes, { headers }));
      return true;
    } catch (error) {
      this.keeps = false;
      this.isFull = error instanceof DOMException && error.name === "QuotaExceededError";
      return false;
    }
  }

  /** @param {string[]} names of shards */
  async delete(names) {
    await Promise.all(names.map((name) => this.#cache?.delete(this.url(name))));
  }

  async deleteManifest() {
    await this.#cache?.delete(this.#manifestUrl);
  }

  /** @param {string} name of a shard */
  url(name) {
    return new URL(name, this.#manifestUrl).href;
  }
}
