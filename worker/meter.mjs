/** How much of a download is there, told to a listener now and then. */

const INTERVAL_MS = 100;

/** @typedef {(loaded: number, total: number) => void} OnProgress bytes */

export class Meter {
  /** Of each shard, in bytes. @type {number[]} */
  #sizes = [];
  /** What is there of it. @type {number[]} */
  #loaded = [];
  /** @type {OnProgress | null} */
  #listener = null;
  #last = 0;

  /** Of all shards, in bytes. */
  get total() {
    return sum(this.#sizes);
  }

  get loaded() {
    return sum(this.#loaded);
  }

  /** @param {OnProgress | null} listener */
  listen(listener) {
    this.#listener = listener;
    this.report();
  }

  /**
   * Begins anew.
   *
   * @param {number[]} sizes
   * @param {boolean[]} isThere which shards are there already
   */
  begin(sizes, isThere) {
    this.#sizes = sizes;
    this.#loaded = sizes.map((size, i) => (isThere[i] ? size : 0));
  }

  /**
   * @param {number} i
   * @param {number} bytes
   */
  count(i, bytes) {
    this.#loaded[i] = bytes;
    const isLate = performance.now() - this.#last >= INTERVAL_MS;
    if (isLate || bytes === this.#sizes[i]) this.report();
  }

  report() {
    if (!this.#listener || !this.#sizes.length) return;
    this.#last = performance.now();
    try {
      this.#listener(this.loaded, this.total);
    } catch {
      this.#listener = null; // a listener that is gone must not end the download
    }
  }
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((all, number) => all + number, 0);
}
