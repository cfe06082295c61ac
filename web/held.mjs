/** What a tab of this origin is working at, so that others let it be. It ends with the tab. */

/** What this tab holds, or has just let go of. */
const mine = new Set();

/** @param {string} id */
function lockOf(id) {
  return `octavo-message:${id}`;
}

/**
 * @param {string} id of a message
 * @returns {() => void} lets go of it
 */
export function hold(id) {
  const { promise, resolve } = Promise.withResolvers();
  mine.add(id);
  const held = globalThis.navigator?.locks?.request(lockOf(id), () => promise) ?? promise;
  held.catch(() => {}).finally(() => mine.delete(id)); // rejected while the tab is closing
  return () => resolve(undefined);
}

/** Whether another tab holds it. @param {string} id of a message */
export async function isHeld(id) {
  if (mine.has(id)) return false;
  const found = await globalThis.navigator?.locks?.query();
  return Boolean(found?.held?.some(({ name }) => name === lockOf(id)));
}
