/** Shards in the Cache API: how they are kept, and how they are read and checked. */

import { checksum, matches } from "./transfer.mjs";

export const CACHE_NAME = "octavo-models";
const KEPT_AS = "X-Octavo-Kept-As"; // header of a kept shard: its SHA-256, and checksum()

/**
 * @typedef {object} Wanted
 * @property {string} url
 * @property {string} sha256
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
export async function readKept({ url, sha256 }) {
  const response = await (await openCache())?.match(url);
  if (!response) return null;
  const bytes = new Uint8Array(await (await response.blob()).arrayBuffer());
  if (response.headers.get(KEPT_AS) === keptAs(sha256, bytes)) return bytes;
  return (await matches(bytes, sha256)) ? bytes : null;
}

/**
 * Headers for a shard whose SHA-256 is right.
 *
 * @param {string} sha256
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Record<string, string>}
 */
export function keptHeaders(sha256, bytes) {
  return { [KEPT_AS]: keptAs(sha256, bytes) };
}

/**
 * What a kept shard says of itself. Another model at the same address has another SHA-256.
 *
 * @param {string} sha256
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
function keptAs(sha256, bytes) {
  return `${sha256} ${checksum(bytes)}`;
}
