/** Replies that are made in JavaScript: refusals, and results of what Python has no part in. */

/**
 * @typedef {import("./protocol.mjs").Result} Result
 * @typedef {import("./protocol.mjs").ErrorReply} ErrorReply
 * @typedef {import("./protocol.mjs").GenerateResult} GenerateResult
 */

/** The id of an error that answers a message without one. */
export const NO_ID = -1;

/** @param {unknown} value */
export function isId(value) {
  return Number.isSafeInteger(value) && /** @type {number} */ (value) >= 0;
}

/**
 * Why a message cannot be a request, if so: it has no id, or that of one under way.
 *
 * @param {any} request
 * @param {{has(id: number): boolean}} open ids under way
 */
export function refusalOf(request, open) {
  if (!isId(request?.id) || Array.isArray(request)) {
    return errorReply(NO_ID, "request.invalid", "A request needs a whole number as its id.");
  }
  const message = `The request ${request.id} is still under way.`;
  return open.has(request.id) ? errorReply(request.id, "request.invalid", message) : null;
}

/**
 * Whether a request says nothing but this; what else it says, the engine does not take.
 *
 * @param {object} request
 * @param {string[]} [names]
 */
export function saysOnly(request, names = []) {
  const known = ["id", "kind", ...names];
  return Object.entries(request).every(([name, value]) => value == null || known.includes(name));
}

/** @returns {GenerateResult} of an answer that was stopped before it began */
export function nothingGenerated() {
  return {
    text: "",
    reasoning: "",
    ids: [],
    finish_reason: "cancelled",
    usage: { prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0 },
    timing: { ttft_ms: 0, prefill_tokens_per_s: 0, decode_tokens_per_s: 0 },
  };
}

/**
 * @param {number} id
 * @param {string} code
 * @param {string} message
 * @param {string} [hint]
 * @returns {ErrorReply}
 */
export function errorReply(id, code, message, hint = "") {
  return { id, kind: "error", error: { code, message, hint } };
}

/**
 * @param {number} id
 * @param {object} value
 * @returns {Result}
 */
export function resultReply(id, value) {
  return { id, kind: "result", value };
}
