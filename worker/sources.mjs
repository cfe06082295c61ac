/**
 * Where the bytes of a model come from: shards with a manifest (here), .gguf files at addresses
 * (addresses.mjs) or on disk (files.mjs). download.mjs fetches and keeps them, all alike.
 *
 * @typedef {import("./manifest.mjs").Shard} Shard
 * @typedef {{from: number, parts: AsyncIterable<Uint8Array>}} Transfer bytes of a shard, beginning
 *   with its byte `from`
 *
 * @typedef {object} Source
 * @property {string} manifestUrl where the manifest is, or is kept; shards are beside it
 * @property {string | null} manifestSha256 if known
 * @property {string | null} sha256 of the whole file, if it is known and those of shards are not
 * @property {boolean} keep whether the browser keeps what has been fetched
 * @property {number} parallel transfers at a time, once `describe` has ended
 * @property {boolean} mayLackHashes whether the manifest is made here, without hashes of shards
 * @property {boolean} mayChange ask `describe` before fetching more, although a manifest is kept
 * @property {(signal: AbortSignal) => Promise<Uint8Array<ArrayBuffer>>} describe the manifest
 * @property {(shard: Shard, from: number, signal: AbortSignal) => Promise<Transfer>} begin to
 *   fetch a shard, from its byte `from` on if that can be had
 */

import { fetchAll, parts, resumes } from "./transfer.mjs";

export const PARALLEL = 4; // transfers at a time

/** A folder of shards with a manifest. @implements {Source} */
export class ManifestSource {
  parallel = PARALLEL;
  mayLackHashes = false;
  mayChange = false;
  /** Shards have their own. */
  sha256 = null;

  /**
   * @param {string} url
   * @param {string | null} sha256
   * @param {boolean} keep
   */
  constructor(url, sha256, keep) {
    this.manifestUrl = url;
    this.manifestSha256 = sha256;
    this.keep = keep;
  }

  /** @param {AbortSignal} signal */
  describe(signal) {
    return fetchAll(this.manifestUrl, signal);
  }

  /**
   * @param {Shard} shard
   * @param {number} from
   * @param {AbortSignal} signal
   * @returns {Promise<Transfer>}
   */
  async begin({ name }, from, signal) {
    const headers = from ? { Range: `bytes=${from}-` } : undefined;
    const url = new URL(name, this.manifestUrl);
    const response = await fetch(url, { cache: "no-store", headers, signal });
    return { from: resumes(response, from) ? from : 0, parts: parts(response) };
  }
}
