/// <reference path="./vendor.d.ts" />
/** A worker that finds out what is what in code; highlight.mjs asks it. */

import hljs from "./vendor/highlight.mjs";

/**
 * @typedef {import("./highlight.mjs").Request} Request
 * @typedef {import("./highlight.mjs").Run} Run
 */

// highlight.js writes HTML of these alone
const PARTS = /<span class="([^" ]*)[^"]*">|(<\/span>)|&(?:amp|lt|gt|quot|#x27);|[^<&]+/g;

self.onmessage = ({ data }) => {
  const { id, text, language } = /** @type {Request} */ (data);
  self.postMessage({ id, runs: hljs.getLanguage(language) ? runsOf(text, language) : null });
};

/**
 * The innermost class of each character, run by run.
 *
 * @param {string} text
 * @param {string} language
 * @returns {Run[]}
 */
function runsOf(text, language) {
  /** @type {Run[]} */
  const runs = [];
  const open = [""];
  const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
  for (const [part, name, isEnd] of value.matchAll(PARTS)) {
    if (name !== undefined) open.push(name);
    else if (isEnd) open.pop();
    else {
      const length = part.startsWith("&") ? 1 : part.length;
      const last = runs.at(-1);
      const inner = open.at(-1) ?? "";
      if (last?.[0] === inner) last[1] += length;
      else runs.push([inner, length]);
    }
  }
  return runs;
}
