/** How .gguf files are cut into shards where no manifest says so. */

import { ShardError } from "./transfer.mjs";

const SHARD_SIZE = 16 * 2 ** 20; // bytes, as the build cuts them
const MOST_PARTS = 1000;
const SPLIT = /-(\d{5})-of-(\d{5})\.gguf$/i;

/**
 * The names of all files of a split model, given one of them; of a whole file, its own.
 *
 * @param {string} name may be a path
 * @returns {string[]}
 */
export function partNames(name) {
  const match = SPLIT.exec(name);
  if (!match) return [name];
  const [end, , of] = match;
  const count = Number(of);
  if (count < 1 || count > MOST_PARTS) {
    throw new ShardError("request.invalid", `A model of ${count} files cannot be opened.`);
  }
  const head = name.slice(0, match.index);
  const extension = end.slice(-".gguf".length);
  return Array.from({ length: count }, (_, i) => {
    return `${head}-${String(i + 1).padStart(5, "0")}-of-${of}${extension}`;
  });
}

/**
 * The manifest of files without one. No shard has bytes of two files.
 *
 * @param {string} name
 * @param {{size: number, version: string}[]} files `version` changes with the contents, as far as
 *   anybody knows
 * @returns {Uint8Array<ArrayBuffer>} JSON text
 */
export function layOut(name, files) {
  const shards = files.flatMap(({ size, version }, part) => {
    const starts = Array.from({ length: Math.ceil(size / SHARD_SIZE) }, (_, i) => i * SHARD_SIZE);
    return starts.map((start) => {
      return { size: Math.min(SHARD_SIZE, size - start), sha256: null, version, part, start };
    });
  });
  const sizes = files.map((file) => file.size);
  const manifest = {
    name,
    size: sizes.reduce((sum, size) => sum + size, 0),
    parts: sizes,
    shards: shards.map((shard, i) => ({ name: `${String(i).padStart(3, "0")}.bin`, ...shard })),
  };
  return new TextEncoder().encode(JSON.stringify(manifest));
}

/**
 * The name of a model in a file of this name.
 *
 * @param {string} file
 */
export function modelName(file) {
  return file.replace(SPLIT, "").replace(/\.gguf$/i, "");
}

/**
 * Where the shards of something without addresses of its own are kept: nothing is fetched there.
 *
 * @param {string} key
 */
export function keptManifestUrl(key) {
  return new URL(`../kept/${encodeURIComponent(key)}/manifest.json`, import.meta.url).href;
}

/**
 * The key of what is kept there, or null.
 *
 * @param {string} manifestUrl
 */
export function keptKey(manifestUrl) {
  const [key, end] = manifestUrl.replace(new URL("../kept/", import.meta.url).href, "").split("/");
  return end === "manifest.json" ? decodeURIComponent(key) : null;
}
