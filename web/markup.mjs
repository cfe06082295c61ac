/// <reference path="./vendor.d.ts" />
/**
 * Markdown and what it looks like. What the model writes is not trusted: raw HTML is shown as text,
 * images become links, and what marked makes of the rest is cleaned by DOMPurify.
 */

import { Marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";

/** @typedef {import("./vendor/marked.esm.js").Token} Token */

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
 * The blocks of a text, blank lines between them included.
 *
 * @param {string} text
 * @returns {Token[]}
 */
export function blocksOf(text) {
  return marked.lexer(text);
}

/**
 * @param {Token[]} blocks
 * @returns {DocumentFragment} their elements
 */
export function fragmentOf(blocks) {
  return DOMPurify.sanitize(marked.parser(blocks).trim(), CLEANING);
}

/**
 * The code blocks in some blocks, in the order of their `pre` elements.
 *
 * @param {Token[]} blocks
 * @returns {Token[]}
 */
export function codesIn(blocks) {
  return blocks.flatMap((block) => {
    if (block.type === "code") return [block];
    return codesIn(block.items ?? (["list_item", "blockquote"].includes(block.type) ? block.tokens : []) ?? []);
  });
}

/** @param {string} text */
function escapeHtml(text) {
  return text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);
}
