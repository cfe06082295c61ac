/** What a screen reader says by itself: one sentence at a time, and no answer token by token. */

import { byId, element } from "./dom.mjs";

const KEEP_MS = 10_000; // who reads the page later shall not find what was said before
const MAX_ANSWER = 600; // characters read at once; the rest is there to be read in the log
const BLOCKS = "p, li, pre, td, th, h1, h2, h3, h4, h5, h6, blockquote, div, .code-language";

/** @param {string} text is said once what is being said has ended */
export function announce(text) {
  const said = element("p", "", text);
  byId("announcer").append(said);
  setTimeout(() => said.remove(), KEEP_MS);
}

/**
 * What one would read aloud of an element: its texts, a block after the other, but no buttons.
 *
 * @param {Element} shown
 */
export function readable(shown) {
  const walker = document.createTreeWalker(shown, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) =>
    node.nodeName === "BUTTON" ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  let text = "";
  /** @type {Element | null | undefined} */
  let before;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeName === "BR") before = undefined;
    if (!(node instanceof Text)) continue;
    const block = node.parentElement?.closest(BLOCKS);
    text += `${block === before ? "" : "\n"}${node.data}`;
    before = block;
  }
  return text;
}

/**
 * The beginning of a finished answer, up to the end of a sentence or of a word.
 *
 * @param {string} text as it is shown
 */
export function beginning(text) {
  const whole = text.trim().replace(/\s+/g, " ");
  if (whole.length <= MAX_ANSWER) return whole;
  const cut = whole.slice(0, MAX_ANSWER);
  const end = Math.max(...[". ", "! ", "? ", "。", "！", "？"].map((sign) => cut.lastIndexOf(sign)));
  if (end > MAX_ANSWER / 2) return cut.slice(0, end + 1);
  const space = cut.lastIndexOf(" ");
  return `${space > MAX_ANSWER / 2 ? cut.slice(0, space) : cut}…`;
}
