/** What models there are (the catalogue) and what a model consists of (its manifest). */

import { ShardError, asNetwork, fetchAll } from "./transfer.mjs";

/**
 * @typedef {{name: string, size: number, sha256: string}} Shard
 * @typedef {{size: number, shards: Shard[]}} Manifest the fields used here; more may be there
 * @typedef {{id: string, manifest: string, sha256?: string}} CatalogueEntry
 * @typedef {{default: string, models: CatalogueEntry[]}} Catalogue
 * @typedef {{url: string, sha256: string | null}} Entry a manifest, and its hash if it is known
 */

/**
 * The manifest URL and its hash, if the catalogue knows it.
 *
 * @param {string} key
 * @param {string} catalogueUrl
 * @param {AbortSignal} signal
 * @returns {Promise<Entry>}
 */
export async function findModel(key, catalogueUrl, signal) {
  const isUrl = /[/:]/.test(key) || key.endsWith(".json");
  const catalogue = await fetchCatalogue(catalogueUrl, signal).catch((error) => {
    if (!isUrl || signal.aborted) throw error;
    return /** @type {Catalogue} */ ({ default: "", models: [] });
  });
  const wanted = isUrl ? new URL(key, catalogueUrl).href : key || catalogue.default;
  for (const { id, manifest, sha256 } of catalogue.models) {
    const url = new URL(manifest, catalogueUrl).href;
    if (wanted === (isUrl ? url : id)) return { url, sha256: sha256 || null };
  }
  if (isUrl) return { url: wanted, sha256: null };
  throw new ShardError(
    "request.invalid",
    `The model "${wanted}" is not in the catalogue.`,
    `Known models: ${catalogue.models.map(({ id }) => id).join(", ")}.`,
  );
}

/**
 * @param {string} url
 * @param {AbortSignal} signal
 * @returns {Promise<Catalogue>}
 */
async function fetchCatalogue(url, signal) {
  try {
    return JSON.parse(new TextDecoder().decode(await fetchAll(url, signal)));
  } catch (error) {
    signal.throwIfAborted();
    throw asNetwork(error);
  }
}

/**
 * @param {string} text
 * @returns {Manifest}
 */
export function parseManifest(text) {
  /** @type {Manifest} */
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch {
    throw new ShardError("manifest.invalid", "The model manifest is not JSON.");
  }
  const shards = manifest?.shards;
  const sizes = Array.isArray(shards) && shards.length > 0 && shards.every(isShard)
    ? shards.reduce((sum, shard) => sum + shard.size, 0)
    : -1;
  if (sizes < 0 || sizes !== manifest.size) {
    throw new ShardError("manifest.invalid", "The model manifest lacks a correct list of shards.");
  }
  return manifest;
}

/**
 * @param {any} shard
 * @returns {boolean}
 */
function isShard(shard) {
  return (
    /^[\w-][\w.-]*$/.test(shard?.name) &&
    Number.isSafeInteger(shard.size) &&
    shard.size > 0 &&
    shard.size < 2 ** 31 &&
    /^[0-9a-f]{64}$/.test(shard.sha256)
  );
}

