/** A conversation that keeps its own messages, and that can be forked. */

import { OctavoError } from "./error.mjs";
import { given } from "./options.mjs";
import { CHAT } from "./shapes.mjs";

/**
 * @import { Stream } from "./completions.mjs"
 * @typedef {import("./types.mjs").ChatMessage} ChatMessage
 * @typedef {import("./types.mjs").TextPart} TextPart
 * @typedef {import("./types.mjs").CompletionOptions} CompletionOptions
 * @typedef {import("./types.mjs").ChatCompletion} ChatCompletion
 * @typedef {import("./types.mjs").ChatCompletionChunk} ChatCompletionChunk
 * @typedef {import("./shapes.mjs").GenerateResult} GenerateResult
 *
 * @typedef {Omit<CompletionOptions, "continues" | "continue_final_message" | "stream">}
 *   ConversationOptions `messages` are what has been said before, all others are for each `send`
 * @typedef {Omit<CompletionOptions, "messages" | "continues" | "continue_final_message">} SendOptions
 * @typedef {string | TextPart[] | ChatMessage} Said a text is the user's; a message may be a tool's
 * @typedef {{
 *   (said: Said, options: SendOptions & {stream: true}):
 *     Promise<Stream<ChatCompletionChunk>> & AsyncIterable<ChatCompletionChunk>;
 *   (said: Said, options?: SendOptions & {stream?: false}): Promise<ChatCompletion>;
 *   (said: Said, options: SendOptions): Promise<Stream<ChatCompletionChunk> | ChatCompletion>;
 * }} Send
 * @typedef {(result: Promise<GenerateResult>) => Promise<GenerateResult>} Follow
 * @typedef {(options: CompletionOptions, follow: Follow) => any} Ask
 */

/**
 * What `octavo.conversation()` makes.
 *
 * @hideconstructor
 */
export class Conversation {
  #options;
  #ask;
  #isAnswering = false;

  /**
   * @param {ConversationOptions} options
   * @param {Ask} ask
   */
  constructor({ messages = [], ...options }, ask) {
    if (!Array.isArray(messages)) {
      throw new OctavoError("request.invalid", 'The option "messages" must be a list.');
    }
    /** What has been said, as `chat.completions.create` takes it. @type {ChatMessage[]} */
    this.messages = [...messages];
    this.#options = options;
    this.#ask = ask;
    /**
     * Says something, and answers as `chat.completions.create` does. When the answer ends, also by
     * a stop, both join `messages`; if it fails, neither does. Throws `engine.busy` while another
     * answer is under way here; a fork can be asked meanwhile.
     *
     * @type {Send}
     */
    this.send = /** @type {any} */ ((/** @type {Said} */ said, /** @type {SendOptions} */ options) =>
      this.#send(said, options));
  }

  /**
   * Another conversation with the same beginning, and the same options. What they share is in the KV
   * cache once, and nothing of it is computed again.
   *
   * @param {number} [count] of messages to take: all, if absent; fewer to ask or answer otherwise
   * @returns {Conversation}
   */
  fork(count) {
    const messages = this.messages.slice(0, count);
    return new Conversation({ ...this.#options, messages }, this.#ask);
  }

  /**
   * @param {Said} said
   * @param {CompletionOptions} [options]
   */
  #send(said, options) {
    if (this.#isAnswering) {
      const hint = "Stop it, wait until it has ended, or ask a fork.";
      throw new OctavoError("engine.busy", "The conversation has an answer under way.", hint);
    }
    if (given(options ?? {}).messages != null) {
      throw new OctavoError("request.invalid", "A conversation keeps its own messages.");
    }
    const isContent = typeof said === "string" || Array.isArray(said);
    const question = isContent ? { role: "user", content: said } : said;
    const messages = [...this.messages, question];
    this.#isAnswering = true;
    return this.#ask({ ...this.#options, ...options, messages }, (result) => {
      const end = () => (this.#isAnswering = false);
      const keep = (/** @type {GenerateResult} */ whole) => {
        const { message } = /** @type {ChatCompletion["choices"][0]} */ (CHAT.whole(whole));
        this.messages = [...messages, message];
      };
      result.then(keep).then(end, end);
      return result;
    });
  }
}
