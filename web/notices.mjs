/** What is the matter, above the prompt box: what went wrong, and a line on what holds just now. */

import { announce } from "./announcer.mjs";
import { OctavoError } from "./client.mjs";
import { byId, byTestId } from "./dom.mjs";

const errorArea = byTestId("error");

/**
 * @param {unknown} error
 * @param {boolean} canRetry the load that it came of
 * @returns {string} its code
 */
export function showError(error, canRetry) {
  const { code, message, hint } = error instanceof OctavoError
    ? error
    : { code: "internal", message: String(error), hint: "" };
  errorArea.dataset.code = code;
  byId("error-message").textContent = message;
  byId("error-hint").textContent = hint;
  byId("error-hint").hidden = !hint;
  byId("error-code").textContent = code;
  byId("retry").hidden = !canRetry;
  byId("unkept").hidden = code !== "shard.quota";
  errorArea.hidden = false;
  return code;
}

export function hideError() {
  errorArea.hidden = true;
}

/**
 * A line for as long as it holds or until it is dismissed.
 *
 * @param {string} text nothing for none
 * @param {string} [recovery] step of a recovery that it tells of
 */
export function showNotice(text, recovery) {
  const notice = byId("notice");
  notice.textContent = text;
  byId("notice-area").hidden = !text;
  if (recovery) notice.dataset.recovery = recovery;
  else delete notice.dataset.recovery;
  if (text) announce(text);
}

export function hideNotice() {
  byId("notice-area").hidden = true;
}
