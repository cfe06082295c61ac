/** What models there are (the catalogue) and what a model consists of (its manifest). */

import { ShardError, asNetwork, fetchAll } from "./transfer.mjs";

const MAX_SHARDS = 1 << 14;

/**
 * @typedef {object} Shard
 * @property {string} name of its file, beside the manifest
 * @property {number} size in bytes
 * @property {string | null} sha256 null only in manifests of layout.mjs, as are those below
 * @property {string} [version] of the file that it is cut from
 * @property {number} [part] number of that file
 * @property {number} [start] where in that file it begins
 *
 * @typedef {object} Manifest the fields used here; more may be there
 * @property {string} [name]
 * @property {number} size
 * @property {Shard[]} shards
 *
 * @typedef {object} CatalogueEntry
 * @property {string} id
 * @property {string} name
 * @property {string} address of a manifest or a .gguf
 * @property {string} [sha256] of what is at the address
 * @property {number} [size] bytes of the model
 * @property {number} [memory] bytes that it takes of the device, with the context that is usual here
 * @property {number} [context] tokens that the model was made for
 * @property {string} [license]
 *
 * @typedef {object} Catalogue
 * @property {string} default id
 * @property {CatalogueEntry[]} models
 * @property {string} [encoder] address of the manifest of an encoder of sentences
 *
 * @typedef {{url: string, sha256: string | null}} Entry an address, and the hash of what is there
 */

/**
 * The address of a model, and its hash if the catalogue knows it.
 *
 * @param {string} key id in the catalogue, or URL; the catalogue's default if empty
 * @param {Catalogue} catalogue
 * @param {string} catalogueUrl what relative URLs are relative to
 * @returns {Entry}
 */
export function findModel(key, catalogue, catalogueUrl) {
  const isUrl = isAddress(key);
  const wanted = isUrl ? addressOf(key, catalogueUrl) : key || catalogue.default;
  for (const { id, address, sha256 } of catalogue.models) {
    const url = addressOf(address, catalogueUrl);
    if (wanted === (isUrl ? url : id)) return { url, sha256: sha256 || null };
  }
  if (isUrl) return { url: wanted, sha256: null };
  const known = catalogue.models.map(({ id }) => id).join(", ");
  throw new ShardError(
    "request.invalid",
    wanted ? `The model "${wanted}" is not in the catalogue.` : "There is no default model.",
    known ? `Known models: ${known}.` : "Give an address, or a file.",
  );
}

/**
 * Whether a model is named by its address; such a model needs no catalogue.
 *
 * @param {string} key
 */
export function isAddress(key) {
  return /[/:]/.test(key) || /\.(json|gguf)$/i.test(key);
}

/**
 * Whether a file of weights is at an address, and not a manifest.
 *
 * @param {string} url
 */
export function isGguf(url) {
  return /\.gguf$/i.test(new URL(url).pathname);
}

/**
 * @param {string} text an address, or a part of one
 * @param {string} base
 */
function addressOf(text, base) {
  try {
    const url = new URL(text, base);
    if (/^https?:$/.test(url.protocol)) return url.href;
  } catch {
    // said below
  }
  throw new ShardError("request.invalid", `"${text.slice(0, 200)}" is not the address of a model.`);
}

/**
 * @param {string} url
 * @param {AbortSignal} signal
 * @returns {Promise<Catalogue>}
 */
export async function fetchCatalogue(url, signal) {
  try {
    return parseCatalogue(new TextDecoder().decode(await fetchAll(url, signal)));
  } catch (error) {
    signal.throwIfAborted();
    throw asNetwork(error);
  }
}

/**
 * @param {string} text
 * @returns {Catalogue}
 */
export function parseCatalogue(text) {
  const catalogue = parseJson(text, "The list of models is not JSON.");
  const { models, encoder = "" } = catalogue ?? {};
  const areTexts = typeof catalogue?.default === "string" && typeof encoder === "string";
  if (!Array.isArray(models) || !models.every(isEntry) || !areTexts) {
    throw new ShardError("manifest.invalid", "The list of models cannot be read.");
  }
  return catalogue;
}

/**
 * @param {any} entry
 * @returns {boolean}
 */
function isEntry(entry) {
  const isHash = !entry?.sha256 || isSha256(entry.sha256);
  return typeof entry?.id === "string" && typeof entry.address === "string" && isHash;
}

/**
 * @param {string} text
 * @param {string} otherwise what to say if it is none
 * @param {string} [hint]
 * @returns {any}
 */
function parseJson(text, otherwise, hint) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ShardError("manifest.invalid", otherwise, hint);
  }
}

/**
 * @param {string} text
 * @param {boolean} mayLackHashes whether shards may have none
 * @returns {Manifest}
 */
export function parseManifest(text, mayLackHashes) {
  const hint = "Give the address of a manifest (.json) or of a .gguf file.";
  /** @type {Manifest} */
  const manifest = parseJson(text, "The model manifest is not JSON.", hint);
  const shards = manifest?.shards;
  const areShards = Array.isArray(shards) && shards.length > 0 &&
    shards.every((shard) => isShard(shard, mayLackHashes));
  const sizes = areShards
    ? shards.reduce((sum, shard) => sum + shard.size, 0)
    : -1;
  if (sizes < 0 || sizes !== manifest.size) {
    throw new ShardError("manifest.invalid", "The model manifest lacks a correct list of shards.");
  }
  if (shards.length > MAX_SHARDS) {
    throw new ShardError("manifest.invalid", `The model has more than ${MAX_SHARDS} shards.`);
  }
  if (new Set(shards.map(({ name }) => name)).size < shards.length) {
    throw new ShardError("manifest.invalid", "Two shards of the model have one name.");
  }
  // the engine uploads in words of 4 bytes: none of them may be cut in two
  const cuts = shards.filter(({ part }, i) => i + 1 < shards.length && part === shards[i + 1].part);
  if (cuts.some(({ size }) => size % 4)) {
    throw new ShardError("manifest.invalid", "The size of a shard is not a multiple of 4 bytes.");
  }
  return manifest;
}

/**
 * Whether a kept text can be used: it may be damaged, or of another version of this page.
 *
 * @param {string} text
 * @param {boolean} mayLackHashes
 */
export function isManifest(text, mayLackHashes) {
  try {
    return Boolean(parseManifest(text, mayLackHashes));
  } catch {
    return false;
  }
}

/**
 * @param {any} shard
 * @param {boolean} mayLackHashes
 * @returns {boolean}
 */
function isShard(shard, mayLackHashes) {
  return (
    typeof shard?.name === "string" &&
    /^[\w-][\w.-]{0,254}$/.test(shard.name) &&
    Number.isSafeInteger(shard.size) &&
    shard.size > 0 &&
    shard.size < 2 ** 31 &&
    (isSha256(shard.sha256) || (mayLackHashes && shard.sha256 === null))
  );
}

/**
 * @param {unknown} text
 * @returns {boolean}
 */
function isSha256(text) {
  return typeof text === "string" && /^[0-9a-f]{64}$/.test(text);
}

