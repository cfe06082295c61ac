/** Grammars of structured answers, in a nested worker that starts when the first one is wanted. */

import { Remote } from "./remote.mjs";

const GRAMMAR_URL = new URL("./grammar.mjs", import.meta.url);
const MOST_SECONDS = 20; // for reading a schema

export class Grammars {
  /** @type {Remote | null} */
  #remote = null;
  /** Where a schema is tried first, as one that cannot be read ends all. @type {Remote | null} */
  #trial = null;
  /** One try after another. @type {Promise<unknown>} */
  #tries = Promise.resolve();

  /** Whether there is a vocabulary, and nothing has failed since it was learned. */
  get ready() {
    return this.#remote !== null;
  }

  /**
   * For a model's vocabulary; all that was begun before ends.
   *
   * @param {string} json {vocabulary: string[], ends: number[]}
   */
  async learn(json) {
    this.#remote?.close();
    this.#remote = new Remote(GRAMMAR_URL);
    await this.#ask(JSON.parse(json));
  }

  /**
   * @param {string} schema a JSON text
   * @param {boolean} strict
   * @returns {Promise<number>} a matcher; rejects if the schema cannot be read
   */
  async begin(schema, strict) {
    const tried = this.#tries.then(() => this.#try(schema, strict));
    this.#tries = tried.catch(() => {});
    await tried;
    return this.#ask({ schema, strict });
  }

  /** @param {string} schema @param {boolean} strict */
  async #try(schema, strict) {
    try {
      if (!this.#trial) {
        this.#trial = new Remote(GRAMMAR_URL);
        await this.#trial.ask({ vocabulary: ["", "{"], ends: [0] });
      }
      const matcher = await within(MOST_SECONDS, this.#trial.ask({ schema, strict }));
      await this.#trial.ask({ free: matcher });
    } catch (error) {
      this.#trial?.close();
      this.#trial = null;
      throw error;
    }
  }

  /**
   * @param {number} matcher
   * @param {string} tokens JSON, those that came since
   * @returns {Promise<Int32Array | null>} which may come next
   */
  next(matcher, tokens) {
    return this.#ask({ matcher, tokens: JSON.parse(tokens) });
  }

  /** @param {number} matcher */
  free(matcher) {
    this.#remote?.ask({ free: matcher }).catch(() => {});
  }

  /** They are not needed any longer. */
  close() {
    this.#remote?.close();
    this.#trial?.close();
    this.#remote = this.#trial = null;
  }

  /** @param {object} question */
  async #ask(question) {
    const remote = this.#remote;
    if (!remote) throw new Error("The grammar has ended.");
    try {
      return await remote.ask(question);
    } catch (error) {
      remote.close();
      if (this.#remote === remote) this.#remote = null;
      throw error;
    }
  }
}

/**
 * @template T
 * @param {number} seconds
 * @param {Promise<T>} work
 * @returns {Promise<T>} rejects when the time is over
 */
function within(seconds, work) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`It took more than ${seconds} s.`)), 1000 * seconds);
  });
  return Promise.race([work, /** @type {Promise<never>} */ (late)]).finally(() => clearTimeout(timer));
}
