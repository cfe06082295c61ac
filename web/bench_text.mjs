/** How fast texts become tokens: a row of the bench, and the texts that it is measured with. */

import { add, median, say, spread } from "./report.mjs";
import { seeded } from "./seeded.mjs";

/** @typedef {import("./client.mjs").Octavo} Octavo */

const WORDS = 12_000; // of a text: some 25,000 tokens
const RUNS = 5;
/** A token each, in most vocabularies. */
export const COMMON = (
  "the of and to in is that for it as was with be by on not he are this at from but have an they " +
  "which or we one all their were there been has when who will more no if out so said what up its"
).split(" ");
const SYLLABLES = "ka ter in mo sel ra ness un vi lo per the st or an de con ing ly ma".split(" ");
const MARKS = [".", ",", ";", ":", "?", "!", "\n", ".\n\n", " (", ") ", " = ", "();\n    "];

/**
 * Prose, invented words, numbers, code and other scripts: no text has the same words as another,
 * so that what a tokenizer keeps of earlier texts helps as little as with a real prompt.
 *
 * @param {number} seed
 */
export function makeText(seed) {
  const random = seeded(seed);
  const one = (/** @type {string[]} */ of) => of[random(of.length)];
  const invented = () => Array.from({ length: 1 + random(3) }, () => one(SYLLABLES)).join("");
  const sign = () => String.fromCodePoint(0x4e00 + random(0x2000));
  const word = () => {
    const kind = random(20);
    if (kind < 11) return one(COMMON);
    if (kind < 17) return invented();
    if (kind < 18) return String(random(100_000));
    if (kind < 19) return `${invented()}_${invented().toUpperCase()}`;
    return `${sign()}${sign()}é${sign()}`;
  };
  const pieces = [];
  for (let i = 0; i < WORDS; i++) pieces.push(random(6) ? " " : one(MARKS), word());
  return pieces.join("");
}

/** @param {Octavo} client with a model loaded */
export async function measureTokenizer(client) {
  await say("Tokenizing");
  await encode(client, makeText(1000));
  const rates = [];
  let tokens = 0;
  for (let seed = 1; seed <= RUNS; seed++) {
    const encoded = await encode(client, makeText(seed));
    tokens = encoded.tokens;
    rates.push((tokens / encoded.ms) * 1000);
  }
  add("tokenizer_tokens_per_s", "text to tokens", median(rates), "tokens/s",
    `texts of ${tokens} tokens; ${spread(rates)}`);
}

/**
 * @param {Octavo} client
 * @param {string} text
 * @returns {Promise<{tokens: number, ms: number}>} in the worker, with the way to the tokenizer
 */
export async function encode(client, text) {
  const { encoded } = await client.measure({ prefill: 1, context: 1, steps: 1, text });
  if (!encoded) throw new Error("The text has not been measured.");
  return encoded;
}
