/** The line of figures: speed, memory, and how full the context is. */

import { byTestId } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {object} Figures
 * @property {number} ttft_ms
 * @property {number} tokens_per_s
 * @property {number} memory_bytes
 * @property {number} tokens of the conversation
 * @property {number} context that there is room for
 *
 * @typedef {{[Name in keyof Figures]?: Figures[Name] | null}} News null: not known any more
 */

export class StatsView {
  #line = byTestId("stats");
  /** @type {News} */
  #known = {};

  /** @param {News} news what is undefined has not changed */
  show(news) {
    const changes = Object.entries(news).filter(([, value]) => value !== undefined);
    Object.assign(this.#known, Object.fromEntries(changes));
    const { ttft_ms, tokens_per_s, memory_bytes, tokens, context } = this.#known;
    const digits = (/** @type {number} */ n) => ({ maximumSignificantDigits: n });
    const parts = [];
    if (ttft_ms != null) {
      parts.push(t("stats_ttft", { seconds: number(ttft_ms / 1000, digits(2)) }));
    }
    if (tokens_per_s != null) {
      parts.push(t("stats_speed", { speed: number(tokens_per_s, digits(3)) }));
    }
    if (memory_bytes != null) {
      parts.push(t("stats_memory", { megabytes: number(Math.round(memory_bytes / 1e6)) }));
    }
    if (tokens != null && context != null) {
      const values = { tokens: number(Math.min(tokens, context)), context: number(context) };
      parts.push(t("stats_tokens", values));
    }
    this.#line.textContent = parts.join(" · ");
    const names = { ttftMs: ttft_ms, tokensPerS: tokens_per_s, memoryBytes: memory_bytes, tokens, context };
    for (const [name, value] of Object.entries(names)) {
      if (value == null) delete this.#line.dataset[name];
      else this.#line.dataset[name] = String(value);
    }
  }
}
