/** The page's side of sw.js, which makes the app work without network, and what the browser keeps. */

const SCOPE = new URL("./", import.meta.url).href;
const APP_CACHE = `octavo-app:${new URL(SCOPE).pathname}`; // as in sw.js
const UNWANTED_KEY = "octavo-no-offline-copy";

/**
 * Keeps the app for the next start, and looks for a newer version of it, unless the visitor has
 * removed the copy. To be called when nothing else needs the network.
 */
export async function installOffline() {
  if (!navigator.serviceWorker) return;
  try {
    if (localStorage.getItem(UNWANTED_KEY)) return;
    const registration = await navigator.serviceWorker.register(new URL("sw.js", SCOPE), {
      scope: SCOPE,
      updateViaCache: "none",
    });
    if (localStorage.getItem(UNWANTED_KEY)) return void registration.unregister(); // removed meanwhile
    registration.active?.postMessage("update");
  } catch (error) {
    console.warn("Octavo will not work offline:", error);
  }
}

/** Whether there is a copy for use without network, or one is being made. */
export async function hasOffline() {
  return Boolean(await registered());
}

/** Makes that copy again, also on later visits. */
export async function keepOffline() {
  localStorage.removeItem(UNWANTED_KEY);
  await installOffline();
}

/** Deletes that copy; there will be none on later visits either. Models stay. */
export async function removeOffline() {
  localStorage.setItem(UNWANTED_KEY, "1");
  const registration = await registered();
  const workers = [registration?.installing, registration?.waiting, registration?.active];
  for (const worker of workers) worker?.postMessage("remove"); // it may be making the copy just now
  await registration?.unregister();
  const names = (await caches.keys()).filter(isOfApp);
  await Promise.all(names.map((name) => caches.delete(name)));
}

/** @param {string} name of a cache */
function isOfApp(name) {
  return name === APP_CACHE || name.startsWith(`${APP_CACHE}:`);
}

async function registered() {
  const registration = await navigator.serviceWorker?.getRegistration(SCOPE);
  return registration?.scope === SCOPE ? registration : undefined;
}

/** Asks the browser not to delete by itself what it keeps for this site. */
export async function keepStorage() {
  try {
    if (!(await navigator.storage.persisted())) await navigator.storage.persist();
  } catch {
    // it decides by itself then, as it does without being asked
  }
}
