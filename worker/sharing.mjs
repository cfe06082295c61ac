/** What page and worker both know of an engine that several clients share. */

/**
 * The fields of a load as one text: loads with the same text are the same load. One that cannot be
 * a load, as the engine will say, is like no other.
 *
 * @param {object} fields
 */
export function likenessOf(fields) {
  const { id: _, kind: __, ...said } = /** @type {Record<string, unknown>} */ (fields);
  const entries = Object.entries(said).filter(([, value]) => value != null);
  entries.sort(([a], [b]) => (a < b ? -1 : 1));
  const plain = (/** @type {string} */ _, /** @type {unknown} */ value) =>
    value instanceof File ? [value.name, value.size, value.lastModified] : value;
  try {
    return JSON.stringify(entries, plain);
  } catch {
    return crypto.randomUUID();
  }
}

/** A client holds this lock as long as it is there. @param {string} client */
export const clientLock = (client) => `octavo-client:${client}`;

/** The page that owns an engine holds this lock. @param {string} group */
export const engineLock = (group) => `octavo-engine:${group}`;

/** The channel between an engine and one client of another tab. @param {string} client */
export const clientChannel = (client) => `octavo-client:${client}`;

/** The channel on which an engine and those who look for it find each other.
 * @param {string} group */
export const hubChannel = (group) => `octavo-engine:${group}`;
