/** How many tokens the question that is being written takes, beside the context: before it is sent. */

import { announce } from "./announcer.mjs";
import { framed } from "./attached.mjs";
import { byId } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./attached.mjs").Attachment} Attachment
 * @typedef {{content: string, files: Attachment[]}} Draft
 * @typedef {{tokens: number, text: string}} History how much of it is counted, and what is not
 *
 * @typedef {object} Counted
 * @property {number} tokens without what the model's template adds
 * @property {number} context
 */

const PAUSE_MS = 250; // without a key, before tokens are counted

export class TokenCount {
  #line = byId("count");
  #tokenize;
  #history;
  #counted;
  #timer = 0;
  #turn = 0;
  /** Of the model that is loaded; 0: of none. */
  #context = 0;
  /** Of files, by the model that is loaded. @type {WeakMap<Attachment, number>} */
  #files = new WeakMap();

  /**
   * @param {(text: string) => Promise<number[]>} tokenize
   * @param {() => History} history of the conversation that the question belongs to
   * @param {() => void} counted is called when more is known of files
   */
  constructor(tokenize, history, counted) {
    this.#tokenize = tokenize;
    this.#history = history;
    this.#counted = counted;
  }

  /** Another model counts otherwise. @param {number} context */
  setModel(context) {
    this.#context = context;
    this.#files = new WeakMap();
    this.#counted();
  }

  /** @param {Attachment} file */
  of(file) {
    return this.#files.get(file);
  }

  /** Shows how much there is, soon. @param {Draft} draft */
  show(draft) {
    clearTimeout(this.#timer);
    const turn = ++this.#turn;
    if (!draft.content.trim() && !draft.files.length) return this.#say(null);
    this.#timer = setTimeout(async () => {
      const counted = await this.count(draft).catch(() => null); // no model, or one elsewhere
      if (turn === this.#turn) this.#say(counted);
    }, PAUSE_MS);
  }

  /**
   * @param {Draft} draft
   * @returns {Promise<Counted | null>} null without a model
   */
  async count({ content, files }) {
    const context = this.#context;
    if (!context) return null;
    const { tokens, text } = this.#history();
    let sum = tokens + await this.length(`${text}${content}`);
    const known = this.#files;
    for (const file of files) {
      if (!known.has(file)) {
        known.set(file, await this.length(framed(file)));
        this.#counted();
      }
      sum += known.get(file) ?? 0;
    }
    return { tokens: sum, context };
  }

  /** @param {string} text */
  async length(text) {
    return text ? (await this.#tokenize(text)).length : 0;
  }

  /** @param {Counted | null} counted */
  #say(counted) {
    this.#line.hidden = !counted;
    if (!counted) return;
    const { tokens, context } = counted;
    const isOver = tokens >= context;
    const wasOver = this.#line.classList.contains("over");
    const values = { tokens: number(tokens), context: number(context) };
    this.#line.textContent = t(isOver ? "count_over" : "count", values);
    this.#line.dataset.tokens = String(tokens);
    this.#line.classList.toggle("over", isOver);
    if (isOver && !wasOver) announce(this.#line.textContent);
  }
}
