/**
 * Markdown that grows while it is shown, rendered some 25 times a second, and more rarely when that
 * is slow: the page must stay free for other things.
 */

import { Flow } from "./flow.mjs";

const BUSY_SHARE = 0.2; // of the main thread's time
const INTERVAL_MS = 40; // between two renderings: smooth enough for text

/** The markdown in one element; `text` may only grow. */
export class MarkdownView {
  text = "";
  #flow;
  #afterRender;
  #frame = 0;
  #nextRender = 0;

  /**
   * @param {HTMLElement} element
   * @param {() => void} [afterRender]
   */
  constructor(element, afterRender = () => {}) {
    this.#flow = new Flow(element);
    this.#afterRender = afterRender;
  }

  /** @param {string} text */
  append(text) {
    const clean = text.replaceAll("\r", ""); // marked drops them, and lengths must agree
    this.text += clean;
    this.#flow.append(clean);
    this.#frame ||= requestAnimationFrame(() => this.#onFrame());
  }

  /** Shows at once what still waits for its frame, as it is if no more comes. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#flow.finish();
    this.#afterRender();
  }

  #onFrame() {
    this.#frame = 0;
    const start = performance.now();
    if (start < this.#nextRender) {
      this.#frame = requestAnimationFrame(() => this.#onFrame());
      return;
    }
    this.#flow.render();
    this.#afterRender();
    const end = performance.now();
    this.#nextRender = Math.max(start + INTERVAL_MS, end + (end - start) * (1 / BUSY_SHARE - 1));
  }
}
