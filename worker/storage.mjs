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

/** @param {number} bytes */
function megabytes(bytes) {
  return `${Math.ceil(bytes / 1e6)} MB`;
}
