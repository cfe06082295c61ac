/** The page's colours, and those of the window that it is installed in. */

import { byId } from "./dom.mjs";

/** @param {string} theme auto, light or dark */
export function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const scheme of ["light", "dark"]) {
    const chosen = theme === scheme ? "all" : "not all";
    const frame = /** @type {HTMLMetaElement} */ (byId(`frame-${scheme}`));
    frame.media = theme === "auto" ? `(prefers-color-scheme: ${scheme})` : chosen;
  }
}
