/** An answer as it comes: into its message and what shows it, with its speed, and kept meanwhile. */

/**
 * @typedef {import("./branches.mjs").Message} Message
 * @typedef {import("./client.mjs").ChatCompletionChunk} Chunk
 * @typedef {import("./transcript.mjs").ReplyView} ReplyView
 *
 * @typedef {object} Watchers
 * @property {(news: import("./stats.mjs").News) => void} showStats
 * @property {ReturnType<import("./records.mjs").Records["begin"]>} record
 * @property {() => void} keep the message, as it is by now
 */

const STATS_INTERVAL_MS = 250;
const KEEP_INTERVAL_MS = 2000; // a tab may be closed at any time

/**
 * @param {AsyncIterable<Chunk>} chunks
 * @param {number} sent when they were asked for, as performance.now() has it
 * @param {Message} answer
 * @param {ReplyView} reply
 * @param {Watchers} watchers
 * @returns {Promise<Chunk>} the last chunk
 */
export async function receive(chunks, sent, answer, reply, { showStats, record, keep }) {
  const speed = new Speedometer(sent, showStats);
  const thought = answer.thought_ms ?? 0;
  let kept = sent;
  answer.finish = "cancelled"; // until it has ended otherwise
  /** @type {Chunk | undefined} */
  let last;
  for await (const chunk of chunks) {
    last = chunk;
    const now = performance.now();
    const { content, reasoning_content } = chunk.choices[0].delta;
    if (content) {
      reply.append(content, answer.thought_ms);
      answer.content = reply.text;
    }
    if (reasoning_content) {
      answer.thought_ms = thought + now - sent;
      answer.reasoning = (answer.reasoning ?? "") + reasoning_content;
      reply.think(reasoning_content);
    }
    const { num_tokens } = chunk.octavo;
    record.count(num_tokens);
    speed.count(num_tokens, now);
    if (now - kept > KEEP_INTERVAL_MS) {
      kept = now;
      keep();
    }
  }
  if (last) record.end(last);
  return /** @type {Chunk} */ (last);
}

/** Tells the time to the first token and the speed since then, every now and then. */
class Speedometer {
  #sent;
  #show;
  #first = 0;
  #shown = 0;

  /**
   * @param {number} sent
   * @param {Watchers["showStats"]} show
   */
  constructor(sent, show) {
    this.#sent = sent;
    this.#show = show;
  }

  /**
   * @param {number} num_tokens so far
   * @param {number} now
   */
  count(num_tokens, now) {
    if (num_tokens) this.#first ||= now;
    if (!this.#first || now - Math.max(this.#first, this.#shown) <= STATS_INTERVAL_MS) return;
    this.#shown = now;
    const tokens_per_s = ((num_tokens - 1) / (now - this.#first)) * 1000;
    this.#show({ ttft_ms: this.#first - this.#sent, tokens_per_s });
  }
}
