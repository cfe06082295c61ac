/**
 * The models that this browser keeps, and the one being downloaded.
 *
 *     open(model) -> manifest     missing shards start to download at once
 *     read(0), read(1), ...       verified bytes, in order: see download.mjs
 */

import { Download, RETRY, cancelled } from "./download.mjs";
import { fetchCatalogue, findModel, isAddress } from "./manifest.mjs";
import { ShardError } from "./transfer.mjs";

/**
 * @typedef {import("./manifest.mjs").Catalogue} Catalogue
 * @typedef {import("./download.mjs").OnProgress} OnProgress
 * @typedef {import("./download.mjs").Retry} Retry
 */

export class ShardStore {
  /** @type {Download | null} */
  #download = null;
  #lookup = new AbortController();
  /** Fetched once, until something fails. @type {Promise<Catalogue> | null} */
  #catalogue = null;
  #catalogueUrl;
  #retry;

  /**
   * @param {string} catalogueUrl absolute URL of models.json
   * @param {Partial<Retry>} [retry]
   */
  constructor(catalogueUrl, retry = {}) {
    this.#catalogueUrl = catalogueUrl;
    this.#retry = { ...RETRY, ...retry };
  }

  /** False once the browser has refused to keep shards: the model works, but not offline. */
  get cached() {
    return this.#download?.cached ?? true;
  }

  /** True once a read has failed because the server has another version of the model by now. */
  get replaced() {
    return this.#download?.replaced ?? false;
  }

  /**
   * The manifest as JSON text; downloads begin. Opening the same model again joins the download
   * that is there, and `onProgress` takes the place of the earlier listener.
   *
   * @param {string | null} [model] catalogue id, or URL relative to the site; the default if empty
   * @param {OnProgress | null} [onProgress]
   * @returns {Promise<string>}
   */
  async open(model, onProgress) {
    checkSecure();
    const entry = await this.#find(model || "");
    if (!this.#download?.continues(entry)) {
      this.#download?.cancel();
      this.#download = new Download(entry, this.#retry);
    }
    if (onProgress) this.#download.listen(onProgress);
    return this.#download.manifestText;
  }

  /** @param {string} key */
  async #find(key) {
    const { signal } = this.#lookup;
    const fetched = (this.#catalogue ??= fetchCatalogue(this.#catalogueUrl, signal));
    const catalogue = await fetched.catch((error) => {
      if (this.#catalogue === fetched) this.#catalogue = null;
      if (!isAddress(key) || signal.aborted) throw error;
      return { default: "", models: [] };
    });
    return findModel(key, catalogue, this.#catalogueUrl);
  }

  /**
   * Verified bytes of shard `i`. Shards after it are fetched ahead, shards before it are let go.
   *
   * @param {number} i
   * @returns {Promise<Uint8Array>}
   */
  async read(i) {
    if (!this.#download) throw new ShardError("engine.not_loaded", "No model is open.");
    return this.#download.read(i);
  }

  /** Ends all transfers; pending reads reject with `request.cancelled`. */
  cancel() {
    this.#lookup.abort(cancelled());
    this.#lookup = new AbortController();
    this.#catalogue = null; // what is opened next may be a second try: with fresh news
    this.#download?.cancel();
  }
}

/**
 * Throws where the browser withholds hashing and the cache. Not as shard.hash, which accuses a
 * file: no model can be loaded here, and the page gives the worker up, as for other internals.
 */
export function checkSecure() {
  if (globalThis.crypto?.subtle) return;
  throw new ShardError(
    "internal",
    "This page must be served over https or from localhost: at other addresses the browser " +
      "does not let it check and keep the model.",
    "Open it over https, or on localhost.",
  );
}
