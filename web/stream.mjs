/** An answer piece by piece: what has come of it, for whoever loops over it. */

/**
 * @typedef {import("../worker/protocol.mjs").Delta} Delta
 * @typedef {import("../worker/protocol.mjs").GenerateResult} GenerateResult
 */

/** Deltas of one answer, kept until they are asked for. */
export class Arrivals {
  /** @type {Delta[]} */
  #deltas = [];
  #ended = false;
  #wake = () => {};
  /** @type {Promise<GenerateResult>} */
  result = new Promise(() => {});

  /** @param {Promise<GenerateResult>} result */
  follow(result) {
    this.result = result;
    const end = () => {
      this.#ended = true;
      this.#wake();
    };
    result.then(end, end);
  }

  /** @param {Delta} delta */
  push(delta) {
    this.#deltas.push(delta);
    this.#wake();
  }

  /** @returns {Promise<Delta | undefined>} nothing after the last one */
  async next() {
    while (!this.#deltas.length && !this.#ended) {
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)));
    }
    return this.#deltas.shift();
  }
}

/**
 * Chunks of one answer; leaving the loop, or `controller.abort()`, stops the generation.
 *
 * @template Chunk
 * @hideconstructor
 */
export class Stream {
  #chunks;

  /**
   * @param {AsyncGenerator<Chunk>} chunks
   * @param {AbortController} controller
   */
  constructor(chunks, controller) {
    this.#chunks = chunks;
    /** Its `abort()` does what leaving the loop does. */
    this.controller = controller;
  }

  [Symbol.asyncIterator]() {
    return this.#chunks;
  }
}
