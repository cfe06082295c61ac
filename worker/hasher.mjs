/** A nested worker that hashes a file as its parts come; asked for nothing, it says the SHA-256. */

import { serve } from "./remote.mjs";

const HASHES_URL = new URL("./hash-wasm.js", import.meta.url).href;
/** @type {Promise<{update(bytes: Uint8Array): void, digest(): string}> | null} */
let hash = null;

serve(async (/** @type {Uint8Array | null} */ bytes) => {
  hash ??= import(HASHES_URL).then(({ createSHA256 }) => createSHA256());
  if (!bytes) return (await hash).digest();
  (await hash).update(bytes);
  return null;
});
