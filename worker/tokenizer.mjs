/** A nested worker that holds a tokenizer: it takes a tokenizer.json first, then texts, all in UTF-8. */

import { serve } from "./remote.mjs";

const TOKENIZERS_URL = new URL("./web-tokenizers.js", import.meta.url).href;
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
/** @type {{encode(text: string): Int32Array} | null} */
let tokenizer = null;

serve(async ({ json, text }) => {
  if (json !== undefined) {
    const { Tokenizer } = await import(TOKENIZERS_URL);
    tokenizer = await Tokenizer.fromJSON(json.buffer);
    return null;
  }
  return Int32Array.from(tokenizer?.encode(decoder.decode(text)) ?? []);
});
