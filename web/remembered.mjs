/** Short texts that the browser keeps. Where its storage is blocked or full, nothing is kept. */

/** @typedef {"localStorage" | "sessionStorage"} Where for later visits, or as long as this tab */

/**
 * @param {Where} where
 * @param {string} key
 * @returns {string | null}
 */
export function remembered(where, key) {
  try {
    return window[where].getItem(key);
  } catch {
    return null;
  }
}

/**
 * @param {Where} where
 * @param {string} key
 * @param {string | null} text null to forget it
 */
export function remember(where, key, text) {
  try {
    if (text === null) window[where].removeItem(key);
    else window[where].setItem(key, text);
  } catch {
    // the page works without
  }
}
