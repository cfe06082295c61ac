/** Reads kept shards in nested workers, several at a time: one thread reads too slowly for a GPU. */

import { readKept } from "./kept.mjs";
import { Remote } from "./remote.mjs";

const COUNT = 3;

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
      return await this.#workers[i].ask(wanted);
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
