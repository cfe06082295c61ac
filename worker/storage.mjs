/** How much the browser lets this site keep. */

import { ShardError } from "./transfer.mjs";

/** @returns {Promise<{usage: number, quota: number} | null>} bytes; null if it does not say */
export async function storageRoom() {
  try {
    const { usage = 0, quota } = await navigator.storage.estimate();
    return quota === undefined ? null : { usage, quota };
  } catch {
    return null;
  }
}

/**
 * Throws if so many bytes more cannot be kept.
 *
 * @param {number} bytes
 */
export async function checkRoom(bytes) {
  const room = bytes > 0 && (await storageRoom());
  if (!room || room.usage + bytes <= room.quota) return;
  const free = Math.max(0, room.quota - room.usage);
  throw new ShardError(
    "shard.quota",
    `To keep the model takes ${megabytes(bytes)} more, but the browser gives this site only ` +
      `${megabytes(free)} (${megabytes(room.usage)} of ${megabytes(room.quota)} are in use).`,
    "Delete other models or free some disk space, or load the model without keeping it.",
  );
}

/**
 * Why a model is not kept whole, and what to do.
 *
 * @param {{bytes: number, all: number}} kept
 * @param {{name: string, kept_bytes: number}[]} others models that are kept
 * @param {{usage: number, quota: number} | null} room
 */
export function notKept({ bytes, all }, others, room) {
  const limit = room ? ` (${megabytes(room.quota)})` : "";
  const names = others.map(({ name, kept_bytes }) => `${name} (${megabytes(kept_bytes)})`);
  const advice = names.length
    ? `To make room, delete what you do not need of: ${names.join(", ")}.`
    : "To make room, free some disk space.";
  return (
    `Only ${megabytes(bytes)} of the model's ${megabytes(all)} are kept for the next visit: ` +
    `the browser gives this site no more room${limit}. ${advice}`
  );
}

/** @param {number} bytes */
function megabytes(bytes) {
  return `${Math.ceil(bytes / 1e6)} MB`;
}
