/** Grammars of structured answers, in a nested worker that starts when the first one is wanted. */

import { Remote } from "./remote.mjs";
import { within } from "./waits.mjs";

const GRAMMAR_URL = new URL("./grammar.mjs", import.meta.url);
const MOST_SECONDS = 20; // for reading a schema
const ANSWER_SECONDS = 120; // for anything else

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
        const learned = this.#trial.ask({ vocabulary: ["", "{"], ends: [0] });
        await within(ANSWER_SECONDS, learned, "The grammar");
      }
      const asked = this.#trial.ask({ schema, strict });
      const matcher = await within(MOST_SECONDS, asked, "Reading the schema");
      await within(ANSWER_SECONDS, this.#trial.ask({ free: matcher }), "The grammar");
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
      return await within(ANSWER_SECONDS, remote.ask(question), "The grammar");
    } catch (error) {
      remote.close();
      if (this.#remote === remote) this.#remote = null;
      throw error;
    }
  }
}
