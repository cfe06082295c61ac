/**
 * Octavo itself, measured as its peers are: through its public client, the chat template and the
 * tokenizer included.
 */

/** @typedef {import("../../../web/client.mjs").Octavo} Client */

const PROBE = 8; // words

/**
 * @param {Client} client with a model loaded
 * @param {import("../../../web/client.mjs").LoadResult} loaded
 * @param {(client: Client, text: string) => Promise<{tokens: number, ms: number}>} encode
 * @returns {Promise<import("./compare.mjs").Engine>}
 */
export async function wrap(client, { device, model }, encode) {
  const probe = await answer(client, Array(PROBE).fill("the"), 1);
  const around = probe.prompt_tokens - PROBE; // tokens that the chat template adds
  return {
    name: "Octavo",
    device: device.name,
    onCpu: device.kind === "cpu",
    note: model.name,
    vocabulary: 0, // it takes words
    encode: (text) => encode(client, text),
    generate: async ({ words }, count) => {
      const { prompt_tokens, times } = await answer(client, words.slice(around), count);
      if (prompt_tokens !== words.length) throw new Error(`A prompt of ${prompt_tokens} tokens.`);
      return times;
    },
  };
}

/**
 * @param {Client} client
 * @param {string[]} words
 * @param {number} count
 */
async function answer(client, words, count) {
  await client.reset();
  /** @type {number[]} */
  const times = [];
  let prompt_tokens = 0;
  const messages = [
    { role: "system", content: "A" },
    { role: "user", content: words.join(" ") },
  ];
  const request = { messages, max_tokens: count, stream: /** @type {const} */ (true) };
  for await (const chunk of client.chat.completions.create(request)) {
    const now = performance.now();
    while (times.length < chunk.octavo.num_tokens) times.push(now);
    prompt_tokens = chunk.usage?.prompt_tokens ?? prompt_tokens;
  }
  return { prompt_tokens, times };
}
