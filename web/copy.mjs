/** A button that copies a text. */

import { announce } from "./announcer.mjs";
import { button } from "./dom.mjs";
import { t } from "./locale.mjs";

/**
 * @param {() => string} text
 * @returns {HTMLButtonElement}
 */
export function copyButton(text) {
  const copy = button("link", "copy", async () => {
    await navigator.clipboard.writeText(text());
    announce(t("copied"));
    const { ariaLabel } = copy;
    if (ariaLabel) copy.ariaLabel = t("copied");
    copy.textContent = t("copied");
    setTimeout(() => {
      copy.textContent = t("copy");
      if (ariaLabel) copy.ariaLabel = ariaLabel;
    }, 1500);
  });
  return copy;
}
