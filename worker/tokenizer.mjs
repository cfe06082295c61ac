/** A nested worker that holds a tokenizer: it takes a tokenizer.json first, then texts. */

import { serve } from "./remote.mjs";

const TOKENIZERS_URL = new URL("./web-tokenizers.js", import.meta.url).href;
/** @type {{encode(text: string): Int32Array} | null} */
let tokenizer = null;

serve(async ({ json, text }) => {
  if (json !== undefined) {
    const { Tokenizer } = await import(TOKENIZERS_URL);
    tokenizer = await Tokenizer.fromJSON(new TextEncoder().encode(json).buffer);
    return null;
  }
  return Int32Array.from(tokenizer?.encode(text) ?? []);
});
