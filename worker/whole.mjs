/** Checks the hash of a whole file, whose shards are read in order and have no hashes. */

import { Remote } from "./remote.mjs";
import { within } from "./waits.mjs";

const HASH_SECONDS = 120; // for a shard

export class WholeFile {
  #count;
  #next = 0;
  /** @type {Promise<unknown>} */
  #last = Promise.resolve();
  /** @type {Remote | null} */
  #hasher = null;

  /** @param {number} count of the shards */
  constructor(count) {
    this.#count = count;
  }

  /**
   * Takes shard `i`; one that it has had already, or that comes too early, does not matter. The
   * SHA-256 of the file with its last shard, else null.
   *
   * @param {number} i
   * @param {Uint8Array} bytes
   * @returns {Promise<string | null>}
   */
  async take(i, bytes) {
    if (i !== this.#next) return null;
    this.#next++;
    this.#hasher ??= new Remote(new URL("./hasher.mjs", import.meta.url));
    await this.#last; // so that only one copy waits
    this.#last = within(HASH_SECONDS, this.#hasher.ask(bytes.slice()), "Hashing the model");
    this.#last.catch(() => {});
    if (this.#next < this.#count) return null;
    const sha256 = await within(HASH_SECONDS, this.#hasher.ask(null), "Hashing the model");
    this.close();
    return sha256;
  }

  close() {
    this.#hasher?.close();
  }
}
