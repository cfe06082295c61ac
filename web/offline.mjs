/** The page's side of sw.js, which makes the app work without network. */

const SCOPE = new URL("./", import.meta.url).href;

/**
 * Keeps the app for the next start, and looks for a newer version of it. To be called when
 * nothing else needs the network.
 */
export async function installOffline() {
  if (!navigator.serviceWorker) return;
  try {
    const registration = await navigator.serviceWorker.register(new URL("sw.js", SCOPE), {
      scope: SCOPE,
      updateViaCache: "none",
    });
    registration.active?.postMessage("update");
  } catch (error) {
    console.warn("Octavo will not work offline:", error);
  }
}
