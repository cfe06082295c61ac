/**
 * A nested worker that holds a tokenizer: it takes a tokenizer.json first, then a text, or a list
 * of texts as JSON, all in UTF-8. To a list it answers how many ids each text has, then all ids.
 */

import { serve } from "./remote.mjs";

const TOKENIZERS_URL = new URL("./web-tokenizers.js", import.meta.url).href;
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
/** @type {{encode(text: string): Int32Array} | null} */
let tokenizer = null;

serve(async ({ json, text, texts }) => {
  if (json !== undefined) {
    const { Tokenizer } = await import(TOKENIZERS_URL);
    tokenizer = await Tokenizer.fromJSON(json.buffer);
    return null;
  }
  if (texts !== undefined) {
    const ids = JSON.parse(decoder.decode(texts)).map((/** @type {string} */ one) => [
      ...(tokenizer?.encode(one) ?? []),
    ]);
    return Int32Array.from([...ids.map((/** @type {number[]} */ own) => own.length), ...ids.flat()]);
  }
  return Int32Array.from(tokenizer?.encode(decoder.decode(text)) ?? []);
});
