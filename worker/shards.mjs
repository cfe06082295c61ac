/**
 * The models that can be opened, and the one being downloaded.
 *
 *     take({model, keep}) -> key  notes what the page says of a model
 *     open(key) -> manifest       missing shards start to download at once
 *     read(0), read(1), ...       verified bytes, in order: see download.mjs
 */

import { AddressSource } from "./addresses.mjs";
import { Download, cancelled } from "./download.mjs";
import { FileSource, isFileKey, keyOfFiles } from "./files.mjs";
import { keptManifestUrl } from "./layout.mjs";
import { listModels, removeModel } from "./library.mjs";
import { fetchCatalogue, findModel, isAddress, isGguf } from "./manifest.mjs";
import { ManifestSource } from "./sources.mjs";
import { notKept } from "./storage.mjs";
import { ShardError } from "./transfer.mjs";
import { RETRY } from "./transfers.mjs";

/**
 * @typedef {import("./manifest.mjs").Catalogue} Catalogue
 * @typedef {import("./sources.mjs").Source} Source
 * @typedef {import("./protocol.mjs").LoadRequest} LoadRequest
 * @typedef {import("./protocol.mjs").NamedLoad} NamedLoad
 * @typedef {import("./download.mjs").OnProgress} OnProgress
 * @typedef {import("./transfers.mjs").Retry} Retry
 */

/** @type {Catalogue} */
const NO_CATALOGUE = { default: "", models: [] };

export class ShardStore {
  /** @type {Download | null} */
  #download = null;
  /** The latest download of each model, by key. @type {Map<string, Download>} */
  #latest = new Map();
  #lookup = new AbortController();
  /** Fetched once, until something fails. @type {Promise<Catalogue> | null} */
  #catalogue = null;
  #catalogueUrl;
  #retry;
  /** Files that the page has given, by key. @type {Map<string, File[]>} */
  #files = new Map();
  /** Whether to keep a model, by key; as its source does where nothing is said.
   * @type {Map<string, boolean>} */
  #keep = new Map();

  /**
   * @param {string} catalogueUrl absolute URL of models.json
   * @param {Partial<Retry>} [retry]
   */
  constructor(catalogueUrl, retry = {}) {
    this.#catalogueUrl = catalogueUrl;
    this.#retry = { ...RETRY, ...retry };
  }

  /**
   * Whether a read of the model failed because the server has another version of it by now.
   *
   * @param {string} [model] as it was opened
   */
  isReplaced(model = "") {
    return this.#latest.get(model)?.replaced ?? false;
  }

  /**
   * Notes the files of a request, and whether its model is to be kept. Returns the request as text
   * can say it: the model is a key. What is wrong in it otherwise, the engine says.
   *
   * @param {LoadRequest} request
   * @returns {NamedLoad}
   */
  take({ model, keep, ...request }) {
    const files = Array.isArray(model) ? model : [model];
    const areFiles = files.length > 0 && files.every((file) => file instanceof File);
    const key = areFiles ? keyOfFiles(files) : /** @type {string | undefined} */ (model);
    if (areFiles) this.#files.set(String(key), files);
    else if (model && typeof model === "object") {
      throw new ShardError("request.invalid", "model should be an id, an address, a File or several.");
    }
    if (keep != null && typeof keep !== "boolean") {
      throw new ShardError("request.invalid", "keep should be true or false.");
    }
    if (keep == null) this.#keep.delete(key ?? "");
    else this.#keep.set(key ?? "", keep);
    return { ...request, model: key };
  }

  /**
   * The manifest as JSON text; downloads begin. Opening the same model again joins the download
   * that is there, and `onProgress` takes the place of the earlier listener.
   *
   * @param {string | null} [model] catalogue id, URL relative to the site, or a file's key; the
   *   default if empty
   * @param {OnProgress | null} [onProgress]
   * @returns {Promise<string>}
   */
  async open(model, onProgress) {
    checkSecure();
    const source = await this.#source(model || "");
    if (!this.#download?.continues(source)) {
      this.#download?.cancel();
      this.#download = new Download(source, this.#retry);
    }
    this.#latest.set(model || "", this.#download);
    if (onProgress) this.#download.listen(onProgress);
    return this.#download.manifestText;
  }

  /** @param {string} key */
  async #source(key) {
    const needsCatalogue = !isFileKey(key);
    return this.#sourceIn(key, needsCatalogue ? await this.#catalogueFor(key) : NO_CATALOGUE);
  }

  /**
   * @param {string} key
   * @param {Catalogue} catalogue
   * @returns {Source}
   */
  #sourceIn(key, catalogue) {
    const keep = this.#keep.get(key);
    if (isFileKey(key)) return new FileSource(key, this.#files.get(key) ?? [], keep ?? false);
    const { url, sha256 } = findModel(key, catalogue, this.#catalogueUrl);
    const Kind = isGguf(url) ? AddressSource : ManifestSource;
    return new Kind(url, sha256, keep ?? true);
  }

  /** @param {string} key of a model; one with an address needs no catalogue */
  async #catalogueFor(key) {
    const { signal } = this.#lookup;
    const fetched = (this.#catalogue ??= fetchCatalogue(this.#catalogueUrl, signal));
    return fetched.catch((error) => {
      if (this.#catalogue === fetched) this.#catalogue = null;
      if (!isAddress(key) || signal.aborted) throw error;
      return NO_CATALOGUE;
    });
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

  /**
   * Pauses the download, or lets it go on; false if there is none.
   *
   * @param {boolean} isPaused
   */
  pause(isPaused) {
    const download = this.#download;
    if (!download?.isUnderWay) return false;
    if (isPaused) download.pause();
    else download.resume();
    return true;
  }

  /** What can be opened, and how much of it is kept: see library.mjs. */
  async list() {
    const { signal } = new AbortController(); // a download that is stopped does not concern this
    const catalogue = await fetchCatalogue(this.#catalogueUrl, signal).catch(() => NO_CATALOGUE);
    const list = await listModels(catalogue, (id) => this.#sourceIn(id, catalogue).manifestUrl);
    const { encoder = "" } = catalogue; // whether there is anything is found out when it is opened
    const isAddress = encoder && URL.canParse(encoder, this.#catalogueUrl);
    return isAddress ? { ...list, encoder: new URL(encoder, this.#catalogueUrl).href } : list;
  }

  /**
   * What the browser keeps of a model, once it has been read; others may have been opened since.
   *
   * @param {string} [model] as it was opened
   * @returns {Promise<import("./protocol.mjs").Kept>}
   */
  async kept(model = "") {
    const download = this.#latest.get(model);
    if (!download?.kept.isFull) return { kept: download?.kept.isWhole ?? false };
    const { models, storage } = await listModels(NO_CATALOGUE, (id) => id);
    const isThis = (/** @type {string} */ id) =>
      download.isOf(id) || download.isOf(keptManifestUrl(id));
    const others = models.filter(({ id, kept_bytes }) => kept_bytes && !isThis(id));
    return { kept: false, not_kept: notKept(download.kept, others, storage) };
  }

  /**
   * Deletes what is kept of a model; engine.busy while it is being fetched.
   *
   * @param {string} model
   */
  async remove(model) {
    const source = await this.#source(model);
    const isFetched = this.#download?.isUnderWay && this.#download.continues(source);
    if (isFetched) throw new ShardError("engine.busy", "This model is being downloaded.");
    return { bytes: await removeModel(source.manifestUrl) };
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
