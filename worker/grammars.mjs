/** Grammars of structured answers, in a nested worker that starts when the first one is wanted. */

import { Remote } from "./remote.mjs";

const GRAMMAR_URL = new URL("./grammar.mjs", import.meta.url);

export class Grammars {
  /** @type {Remote | null} */
  #remote = null;
  /** Where a schema is tried first, as one that cannot be read ends all. @type {Remote | null} */
  #trial = null;

  /**
   * For a model's vocabulary; what was for another one ends.
   *
   * @param {string} json {vocabulary: string[], ends: number[]}
   */
  async learn(json) {
    this.close();
    this.#remote = new Remote(GRAMMAR_URL);
    await this.#ask(JSON.parse(json));
  }

  /**
   * @param {string} schema a JSON text
   * @param {boolean} strict
   * @returns {Promise<number>} a matcher; rejects if the schema cannot be read
   */
  async begin(schema, strict) {
    await this.#try(schema, strict);
    return this.#ask({ schema, strict });
  }

  /** @param {string} schema @param {boolean} strict */
  async #try(schema, strict) {
    const trial = (this.#trial ??= await newTrial());
    try {
      await trial.ask({ free: await trial.ask({ schema, strict }) });
    } catch (error) {
      trial.close();
      if (this.#trial === trial) this.#trial = null;
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

  /** @param {object} question */
  async #ask(question) {
    if (!this.#remote) throw new Error("The grammar has ended.");
    try {
      return await this.#remote.ask(question);
    } catch (error) {
      this.close();
      throw error;
    }
  }

  close() {
    this.#remote?.close();
    this.#remote = null;
  }
}

async function newTrial() {
  const trial = new Remote(GRAMMAR_URL);
  await trial.ask({ vocabulary: ["", "{"], ends: [0] });
  return trial;
}
