/** Small texts kept for the next visit; where the browser keeps nothing, there is none. */

export const memory = {
  /** @param {string} key @returns {Promise<string | undefined>} */
  async get(key) {
    const kept = await globalThis.caches?.match(memoryUrl(key)).catch(() => undefined);
    return kept?.text();
  },
  /** @param {string} key @param {string} value */
  async set(key, value) {
    const cache = await globalThis.caches?.open("octavo-memory").catch(() => null);
    await cache?.put(memoryUrl(key), new Response(value)).catch(() => {});
  },
};

/** What was learned of a GPU holds for the version of the browser, which compiles the kernels.
 * @param {string} key */
function memoryUrl(key) {
  const browser = /(?:Chrome|Firefox|Version)\/\d+/.exec(navigator.userAgent)?.[0] ?? "";
  return new URL(`../memory/${encodeURIComponent(`${browser} ${key}`)}`, import.meta.url).href;
}
