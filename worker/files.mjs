/** A .gguf on disk, or split into several files. They are read in slices. */

import { keptManifestUrl, layOut, modelName, partNames } from "./layout.mjs";
import { PARALLEL } from "./sources.mjs";
import { ShardError } from "./transfer.mjs";

/**
 * @typedef {import("./sources.mjs").Source} Source
 * @typedef {import("./sources.mjs").Shard} Shard
 * @typedef {import("./sources.mjs").Transfer} Transfer
 */

const PREFIX = "file "; // no address begins so

/**
 * The key by which these files can be opened again.
 *
 * @param {File[]} files
 */
export function keyOfFiles(files) {
  const [{ name }] = inOrder(files);
  const size = files.reduce((sum, file) => sum + file.size, 0);
  const changed = Math.max(...files.map(({ lastModified }) => lastModified));
  return `${PREFIX}${encodeURIComponent(name)} ${size} ${changed}`;
}

/** @param {string} key */
export function isFileKey(key) {
  return key.startsWith(PREFIX);
}

/** @implements {Source} */
export class FileSource {
  parallel = PARALLEL;
  mayLackHashes = true;
  mayChange = false;
  manifestSha256 = null;
  sha256 = null;
  #files;

  /**
   * @param {string} key
   * @param {File[]} files none if they are to be found among what is kept
   * @param {boolean} keep
   */
  constructor(key, files, keep) {
    this.#files = inOrder(files);
    this.manifestUrl = keptManifestUrl(key);
    this.keep = keep;
  }

  async describe() {
    const [first] = this.#files;
    if (!first) throw gone();
    const files = this.#files.map(({ size, lastModified }) => ({ size, version: `${lastModified}` }));
    return layOut(modelName(first.name), files);
  }

  /**
   * @param {Shard} shard
   * @param {number} from
   * @param {AbortSignal} signal
   * @returns {Promise<Transfer>}
   */
  async begin({ part = 0, start = 0, size }, from, signal) {
    return { from, parts: slice(this.#files[part], start + from, start + size, signal) };
  }
}

/**
 * @param {File | undefined} file
 * @param {number} start
 * @param {number} end
 * @param {AbortSignal} signal
 */
async function* slice(file, start, end, signal) {
  if (!file) throw gone();
  let bytes;
  try {
    bytes = await file.slice(start, end).arrayBuffer();
  } catch (error) {
    throw gone(error);
  }
  signal.throwIfAborted();
  yield new Uint8Array(bytes);
}

/** @param {unknown} [reason] */
function gone(reason) {
  const why = reason instanceof Error ? ` (${reason.message})` : "";
  return new ShardError(
    "shard.file",
    `The file cannot be read${why}.`,
    "It may have been changed or moved: open it again.",
  );
}

/**
 * The files by their number; ShardError if one is missing.
 *
 * @param {File[]} files
 */
function inOrder(files) {
  if (!files.length) return files;
  const names = partNames(files[0].name);
  return names.map((name) => {
    const file = files.find((other) => other.name === name);
    if (file && files.length === names.length) return file;
    const problem = file ? "These files are not of one model." : `${name} is missing.`;
    const hint = names.length > 1 ? `Choose all ${names.length} files together.` : "Choose one.";
    throw new ShardError("request.invalid", problem, hint);
  });
}
