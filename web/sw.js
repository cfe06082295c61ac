/**
 * Keeps the app for use without network: every file of precache.json, in one cache per version.
 * Model shards are not kept here: worker/shards.mjs does that.
 *
 * A page and everything it loads come from one version. A newer one is fetched in the background,
 * whole or not at all: each file has its hash, so that what the server sends while it changes is
 * no part of any version. It is put to use when the page starts next while no other tab runs the
 * old one. A pointer says which version is in use; the life cycle of this script has no part in it.
 */

const sw = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));

const SCOPE = sw.registration.scope;
const PRECACHE_URL = new URL("precache.json", SCOPE).href; // stored last: marks a whole version
const MODELS_URL = new URL("models/", SCOPE).href;
const POINTER_CACHE = `octavo-app:${new URL(SCOPE).pathname}`; // an origin may have many scopes
const VERSION_PREFIX = `${POINTER_CACHE}:`;
const PARALLEL = 6;

/** Name of the cache in use, once it has been looked up. */
let inUse = "";
/** Whether the visitor wants no copy any longer: the page deletes it. */
let isRemoved = false;

sw.addEventListener("install", (event) => event.waitUntil(update()));
sw.addEventListener("message", (event) => {
  if (event.data === "remove") isRemoved = true;
  if (event.data !== "update") return;
  if (isRemoved) inUse = ""; // it is wanted again
  isRemoved = false;
  event.waitUntil(update().catch(() => {})); // offline, perhaps
});
sw.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(SCOPE)) return;
  if (request.url.startsWith(MODELS_URL)) return;
  event.respondWith(request.mode === "navigate" ? openPage(event) : respond(request));
});

/** Fetches the version that the server has, unless it is here. */
async function update() {
  try {
    await bring(await published());
  } finally {
    if (isRemoved) await forget(); // what was kept since the page deleted everything
  }
}

/** @param {{version: string, files: Record<string, string>}} published */
async function bring({ version, files }) {
  const name = VERSION_PREFIX + version;
  if (!(await isWhole(name))) {
    const cache = await caches.open(name);
    await fetchMissing(cache, files);
    if ((await published()).version !== version) throw new Error("The site has just changed.");
    await keep(cache, PRECACHE_URL, "");
  }
  const used = await pointer();
  if (!used || !(await isWhole(used))) await use(name);
}

/** Deletes all that is kept of the app. */
async function forget() {
  const names = (await caches.keys()).filter((name) =>
    name === POINTER_CACHE || name.startsWith(VERSION_PREFIX));
  await Promise.all(names.map((name) => caches.delete(name)));
}

/** @returns {Promise<{version: string, files: Record<string, string>}>} SHA-256 of files, or "" */
async function published() {
  return (await fetch(PRECACHE_URL, { cache: "no-store" })).json();
}

/**
 * @param {Cache} cache
 * @param {Record<string, string>} files
 */
async function fetchMissing(cache, files) {
  const kept = new Set((await cache.keys()).map(({ url }) => url));
  const all = Object.entries(files).map(([file, sha256]) => ({ url: new URL(file, SCOPE).href, sha256 }));
  const queue = all.filter(({ url }) => !kept.has(url));
  const fetchNext = async () => {
    for (let next = queue.pop(); next; next = queue.pop()) await keep(cache, next.url, next.sha256);
  };
  await Promise.all(Array.from({ length: PARALLEL }, fetchNext));
}

/**
 * @param {Cache} cache
 * @param {string} url
 * @param {string} sha256 hex, or "" for a file that may differ from what was built
 */
async function keep(cache, url, sha256) {
  if (isRemoved) throw new Error("The copy has been removed.");
  const response = await fetch(url, { cache: "reload" });
  if (!response.ok) throw new Error(`status ${response.status} for ${url}`);
  const body = await response.arrayBuffer();
  if (sha256 && (await hashOf(body)) !== sha256) throw new Error(`not of this version: ${url}`);
  // made anew, for a response that came by a redirect may not answer a navigation
  await cache.put(url, new Response(body, { headers: response.headers }));
}

/** @param {ArrayBuffer} bytes */
async function hashOf(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} name */
async function isWhole(name) {
  return Boolean(await caches.match(PRECACHE_URL, { cacheName: name }));
}

async function pointer() {
  inUse ||= (await (await caches.match(SCOPE, { cacheName: POINTER_CACHE }))?.text()) ?? "";
  return inUse;
}

/**
 * Makes a version the one in use and deletes the others.
 *
 * @param {string} name
 */
async function use(name) {
  await (await caches.open(POINTER_CACHE)).put(SCOPE, new Response(name));
  inUse = name;
  const names = (await caches.keys()).filter((other) => other.startsWith(VERSION_PREFIX));
  await Promise.all(names.map((other) => other !== name && caches.delete(other)));
}

/**
 * @param {FetchEvent} event
 * @returns {Promise<Response>}
 */
async function openPage({ request, clientId }) {
  const waiting = await newVersion();
  if (waiting && !(await isUsedElsewhere(clientId))) await use(waiting);
  const kept = await find(request.url);
  if (kept) return kept;
  return fetch(request).catch(async (error) => {
    const page = await find(SCOPE);
    if (page) return page;
    throw error;
  });
}

/** Name of a whole version that is not in use yet. */
async function newVersion() {
  const used = await pointer();
  for (const name of await caches.keys()) {
    if (name.startsWith(VERSION_PREFIX) && name !== used && (await isWhole(name))) return name;
  }
  return "";
}

/** @param {string} clientId of the page that goes away, if the page is reloaded */
async function isUsedElsewhere(clientId) {
  const pages = await sw.clients.matchAll({ type: "window" });
  return pages.some(({ id }) => id !== clientId);
}

/**
 * @param {Request} request
 * @returns {Promise<Response>}
 */
async function respond(request) {
  return (await find(request.url)) ?? fetch(request);
}

/** @param {string} url */
async function find(url) {
  const options = { cacheName: await pointer(), ignoreSearch: true, ignoreVary: true };
  return options.cacheName ? caches.match(url, options) : undefined;
}
