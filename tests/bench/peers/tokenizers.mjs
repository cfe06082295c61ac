/** The tokenizer of transformers.js, which is JavaScript alone, with Octavo's own tokenizer.json. */

import { Tokenizer } from "./lib/tokenizers/tokenizers.min.mjs";

const VERSION = "0.2.0";

/**
 * @param {import("./compare.mjs").Options} options
 * @returns {Promise<import("./compare.mjs").Engine>}
 */
export async function load({ model }) {
  const response = await fetch(`${model.folder}tokenizer.json`);
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  const tokenizer = new Tokenizer(await response.json(), {});
  return {
    name: `@huggingface/tokenizers ${VERSION}`,
    device: "JavaScript",
    onCpu: true,
    note: "tokenizes, no more",
    vocabulary: 0,
    async encode(text) {
      const started = performance.now();
      const { ids } = tokenizer.encode(text, { add_special_tokens: false });
      return { tokens: ids.length, ms: performance.now() - started };
    },
  };
}
