/** Reads kept shards in nested workers, several at a time: one thread reads too slowly for a GPU. */

import { readKept } from "./kept.mjs";
import { Remote } from "./remote.mjs";
import { within } from "./waits.mjs";

const COUNT = 3;
const READ_SECONDS = 120;

export class Readers {
  /** @type {Remote[]} */
  #workers = [];
  #next = 0;

  /**
   * See readKept.
   *
   * @param {import("./kept.mjs").Wanted} wanted
   * @returns {Promise<Uint8Array<ArrayBuffer> | null>}
   */
  async read(wanted) {
    try {
      const i = this.#next++ % COUNT;
      this.#workers[i] ??= new Remote(new URL("./reader.mjs", import.meta.url));
      return await within(READ_SECONDS, this.#workers[i].ask(wanted), "Reading a shard");
    } catch {
      return readKept(wanted); // no nested workers here, or they have been closed
    }
  }

  /** Ends the workers; a later read starts new ones. */
  close() {
    this.#workers.forEach((worker) => worker?.close());
    this.#workers = [];
  }
}
