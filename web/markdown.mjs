/** Texts that grow while they are shown: markdown, and plain text. */

import { Flow } from "./flow.mjs";
import { Pace } from "./pace.mjs";

/** The markdown in one element; `text` may only grow. */
export class MarkdownView {
  text = "";
  #flow;
  #afterRender;
  #pace = new Pace(() => {
    this.#flow.render();
    this.#afterRender();
  });

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
    this.#pace.soon();
  }

  /** Shows at once what still waits for its frame, as it is if no more comes. */
  finish() {
    this.#flow.finish();
    this.#pace.now();
  }
}

/** The plain text in one element. */
export class PlainView {
  #waiting = "";
  #pace;

  /**
   * @param {HTMLElement} element
   * @param {() => void} afterRender
   */
  constructor(element, afterRender) {
    this.#pace = new Pace(() => {
      if (this.#waiting) element.append(this.#waiting);
      this.#waiting = "";
      afterRender();
    });
  }

  /** @param {string} text */
  append(text) {
    this.#waiting += text;
    this.#pace.soon();
  }

  /** Shows at once what still waits for its frame. */
  finish() {
    this.#pace.now();
  }
}
