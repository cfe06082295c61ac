/** Shards in the Cache API: how they are kept, and how they are read and checked. */

import { checksum, matches } from "./transfer.mjs";

export const CACHE_NAME = "octavo-models";
const KEPT_AS = "X-Octavo-Kept-As"; // header of a kept shard: its identity, and checksum()

/**
 * @typedef {object} Wanted
 * @property {string} url
 * @property {string | null} sha256
 * @property {string} version where no SHA-256 is known: see layout.mjs
 */

/** @returns {Promise<Cache | null>} null where the browser has or allows none */
export async function openCache() {
  try {
    return await caches.open(CACHE_NAME);
  } catch {
    return null;
  }
}

/**
 * The bytes of a kept shard, or null if there is none or it is not what it should be. By way of a
 * blob they come at twice the speed of `response.arrayBuffer()`.
 *
 * @param {Wanted} wanted
 * @returns {Promise<Uint8Array<ArrayBuffer> | null>}
 */
export async function readKept(wanted) {
  const response = await (await openCache())?.match(wanted.url);
  if (!response) return null;
  const bytes = new Uint8Array(await (await response.blob()).arrayBuffer());
  if (response.headers.get(KEPT_AS) === keptAs(wanted, bytes)) return bytes;
  return wanted.sha256 && (await matches(bytes, wanted.sha256)) ? bytes : null;
}

/**
 * Headers for a shard that is right.
 *
 * @param {Omit<Wanted, "url">} wanted
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Record<string, string>}
 */
export function keptHeaders(wanted, bytes) {
  return { [KEPT_AS]: keptAs(wanted, bytes) };
}

/**
 * What a kept shard says of itself. Another model at the same address has another identity.
 *
 * @param {Omit<Wanted, "url">} wanted
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
function keptAs({ sha256, version }, bytes) {
  return `${sha256 ?? encodeURIComponent(version)} ${checksum(bytes)}`;
}
