/// <reference path="./vendor.d.ts" />
/**
 * Markdown that grows while it is shown. Only blocks that changed are rendered again, some 25 times
 * a second, and more rarely when rendering is slow: the page must stay free for other things.
 *
 * What the model writes is not trusted: raw HTML is shown as text, images become links, and what
 * marked makes of the rest is cleaned by DOMPurify.
 */

import { Marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";

const BUSY_SHARE = 0.2; // of the main thread's time
const INTERVAL_MS = 40; // between two renderings: smooth enough for text
const OPEN_BLOCKS = 2; // at the end; earlier ones cannot change any more by what comes later

const marked = new Marked({
  gfm: true,
  // a link defined elsewhere would change blocks that are done: definitions are shown as text
  tokenizer: { def: () => undefined },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ href, text }) => `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const CLEANING = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start", "align", "target", "rel"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ADD_URI_SAFE_ATTR: ["start", "align"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

/**
 * @typedef {object} Block
 * @property {string} raw blocks with equal source look the same
 * @property {number} length of the source and the blank lines after it
 * @property {import("./vendor/marked.esm.js").Token[]} tokens
 */

/** The markdown in one element; `text` may only grow. */
export class MarkdownView {
  text = "";
  #element;
  #afterRender;
  /** What each child of the element shows. @type {Block[]} */
  #blocks = [];
  #frame = 0;
  #nextRender = 0;

  /**
   * @param {HTMLElement} element
   * @param {() => void} [afterRender]
   */
  constructor(element, afterRender = () => {}) {
    this.#element = element;
    this.#afterRender = afterRender;
  }

  /** @param {string} text */
  append(text) {
    this.text += text.replaceAll("\r", ""); // marked drops them, and lengths must agree
    this.#frame ||= requestAnimationFrame(() => this.#onFrame());
  }

  /** Shows at once what still waits for its frame. */
  finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#render();
  }

  #onFrame() {
    this.#frame = 0;
    const start = performance.now();
    if (start < this.#nextRender) {
      this.#frame = requestAnimationFrame(() => this.#onFrame());
      return;
    }
    this.#render();
    const end = performance.now();
    this.#nextRender = Math.max(start + INTERVAL_MS, end + (end - start) * (1 / BUSY_SHARE - 1));
  }

  #render() {
    const first = Math.max(0, this.#blocks.length - OPEN_BLOCKS);
    const offset = this.#blocks.slice(0, first).reduce((sum, { length }) => sum + length, 0);
    const blocks = split(this.text.slice(offset));
    blocks.forEach((block, i) => this.#show(first + i, block));
    while (this.#element.children.length > first + blocks.length) {
      this.#element.lastElementChild?.remove();
    }
    this.#blocks = [...this.#blocks.slice(0, first), ...blocks];
    this.#afterRender();
  }

  /**
   * @param {number} i
   * @param {Block} block
   */
  #show(i, { raw, tokens }) {
    if (this.#blocks[i]?.raw === raw) return;
    const holder = document.createElement("div");
    holder.dir = "auto";
    holder.append(DOMPurify.sanitize(marked.parser(tokens).trim(), CLEANING));
    const old = this.#element.children[i];
    if (old) old.replaceWith(holder);
    else this.#element.append(holder);
  }
}

/**
 * Top-level blocks; blank lines belong to the block before them.
 *
 * @param {string} text
 * @returns {Block[]}
 */
function split(text) {
  /** @type {Block[]} */
  const blocks = [];
  for (const token of marked.lexer(text)) {
    const last = blocks.at(-1);
    const { raw } = token;
    if (last && token.type === "space") last.length += raw.length;
    else blocks.push({ raw, length: raw.length, tokens: [token] });
  }
  return blocks;
}

/** @param {string} text */
function escapeHtml(text) {
  return text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);
}
