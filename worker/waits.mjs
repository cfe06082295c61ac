/** Waits that end: what has not come by then, is an error with a code. */

import { ShardError } from "./transfer.mjs";

/**
 * The outcome of `work`, or an error with `code` when the time is over.
 *
 * @template T
 * @param {number} seconds generous: this is for what will never come
 * @param {Promise<T>} work
 * @param {string} what takes so long
 * @param {string} [code] of engine/errors.py
 * @returns {Promise<T>}
 */
export function within(seconds, work, what, code = "engine.stalled") {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    const message = `${what}: nothing came of it within ${seconds} s.`;
    timer = setTimeout(() => reject(new ShardError(code, message, "Try again, or reload the page.")),
      1000 * seconds);
  });
  return Promise.race([work, /** @type {Promise<never>} */ (late)]).finally(() => clearTimeout(timer));
}
