/** The models of the catalogue and those that are kept beside them. */

import { openCache } from "./kept.mjs";
import { keptKey } from "./layout.mjs";
import { parseManifest } from "./manifest.mjs";
import { storageRoom } from "./storage.mjs";

/**
 * @typedef {import("./manifest.mjs").Catalogue} Catalogue
 * @typedef {import("./protocol.mjs").ListedModel} ListedModel
 * @typedef {import("./protocol.mjs").ModelList} ModelList
 */

/**
 * @param {Catalogue} catalogue
 * @param {(id: string) => string} manifestUrlOf
 * @returns {Promise<ModelList>}
 */
export async function listModels(catalogue, manifestUrlOf) {
  const cache = await openCache();
  const keys = new Set((await cache?.keys())?.map(({ url }) => url));
  const listed = new Set();
  /** @type {ListedModel[]} */
  const models = [];
  for (const { address, sha256, ...about } of catalogue.models) {
    const url = manifestUrlOf(about.id);
    listed.add(url);
    models.push({ ...about, catalogued: true, kept_bytes: (await keptOf(cache, keys, url)).bytes });
  }
  for (const url of keys) {
    if (listed.has(url) || !url.endsWith(".json")) continue;
    const { name, size, bytes } = await keptOf(cache, keys, url);
    models.push({ id: keptKey(url) ?? url, name, size, catalogued: false, kept_bytes: bytes });
  }
  return { default: catalogue.default, models, storage: await storageRoom() };
}

/**
 * Deletes the manifest and the shards that it names; returns their bytes.
 *
 * @param {string} manifestUrl
 */
export async function removeModel(manifestUrl) {
  const cache = await openCache();
  const keys = new Set((await cache?.keys())?.map(({ url }) => url));
  const { bytes, urls } = await keptOf(cache, keys, manifestUrl);
  // first the manifest, without which no other tab keeps more
  for (const url of [manifestUrl, ...urls]) await cache?.delete(url);
  return bytes;
}

/**
 * What is kept of a model, and where all of its shards would be.
 *
 * @param {Cache | null} cache
 * @param {Set<string>} keys
 * @param {string} manifestUrl
 */
async function keptOf(cache, keys, manifestUrl) {
  const nothing = { name: manifestUrl, size: 0, bytes: 0, urls: /** @type {string[]} */ ([]) };
  try {
    const text = await (await cache?.match(manifestUrl))?.text();
    if (text === undefined) return nothing;
    const { name = manifestUrl, size, shards } = parseManifest(text, true);
    const urlOf = (/** @type {{name: string}} */ shard) => new URL(shard.name, manifestUrl).href;
    const kept = shards.filter((shard) => keys.has(urlOf(shard)));
    const bytes = kept.reduce((sum, shard) => sum + shard.size, 0);
    return { name, size, bytes, urls: shards.map(urlOf) };
  } catch {
    return nothing; // nothing that could be opened
  }
}
