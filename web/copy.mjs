/** A button that copies a text. */

import { announce } from "./announcer.mjs";
import { button } from "./dom.mjs";
import { t } from "./locale.mjs";

const SAID_MS = 1500;

/**
 * @param {() => string} text
 * @returns {HTMLButtonElement}
 */
export function copyButton(text) {
  let timer = 0;
  /** What it is called while it does not say how it went. @type {string | null} */
  let label = null;
  const copy = button("link", "copy", async () => {
    const said = t((await isCopied(text())) ? "copied" : "copy_refused");
    announce(said);
    if (!timer) label = copy.ariaLabel;
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = 0;
      copy.textContent = t("copy");
      copy.ariaLabel = label;
    }, SAID_MS);
    copy.textContent = said;
    if (label) copy.ariaLabel = said;
  });
  return copy;
}

/** Whether the browser lets the page do it. @param {string} text */
async function isCopied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
