/** How the KV cache uses its memory, and what finding blocks by a table costs: rows of the bench. */

import { add, say, spread } from "./report.mjs";

/**
 * @typedef {import("./client.mjs").Octavo} Octavo
 */

const SHARES = [0.28, 0.2, 0.14, 0.1, 0.07]; // of a context, the lengths of the conversations
const SENTENCE = "The sea is wide, and the old lighthouse stands alone. ";
const SENTENCE_TOKENS = 12.5; // about

/**
 * Several conversations of different lengths, all of which stay in the KV cache, in the memory that
 * one context takes at most.
 *
 * @param {Octavo} client with a budget of one context
 */
export async function measurePool(client) {
  const { model } = await client.status();
  if (!model) return;
  await client.reset();
  for (const [i, share] of SHARES.entries()) {
    await say(`A conversation in the KV cache, ${i + 1} of ${SHARES.length}`);
    const sentences = Math.ceil((share * model.context) / SENTENCE_TOKENS);
    const messages = [
      { role: "system", content: `You are sailor number ${i + 1}.` },
      { role: "user", content: SENTENCE.repeat(sentences) },
    ];
    await client.chat.completions.create({ messages, max_tokens: 8 });
  }
  const { kv } = await client.status();
  if (!kv) return;
  const note = `${kv.conversations} conversations, ${kv.tokens} tokens, context ${model.context}`;
  add("kv_utilization_percent", "KV utilization", 100 * kv.utilization, "%", note);
  add("kv_context_times", "  preallocated contexts, to the KV memory",
    kv.preallocated_bytes / kv.bytes, "times", `${(kv.bytes / 1e6).toFixed(1)} MB allocated`);
}

/**
 * Decoding with the blocks in random order against decoding with them one after the other, which is
 * how a contiguous cache lies in memory: the same kernels, by turns.
 *
 * @param {Octavo} client
 * @param {{context: number, steps: number, rounds: number}} sizes
 */
export async function measurePaging(client, { context, steps, rounds }) {
  await say(`Decode at context ${context} with scattered blocks`);
  /** @type {number[]} */
  const inOrder = [];
  /** @type {number[]} */
  const random = [];
  for (let i = 0; i < rounds; i++) {
    for (const scattered of i % 2 ? [true, false] : [false, true]) {
      const measured = await client.measure({ prefill: 1, context, steps, scattered });
      (scattered ? random : inOrder).push(measured.decode_tokens_per_s);
    }
  }
  // The best of each: whatever else the machine does only takes time.
  add("paged_to_contiguous", "a token with scattered KV blocks to one in order",
    Math.max(...inOrder) / Math.max(...random), "times",
    `context ${context}; tokens/s: ${spread(random)}; in order ${spread(inOrder)}`);
}
