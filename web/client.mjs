/**
 * The JavaScript API: an LLM in this browser, in the shape of the OpenAI client.
 *
 *     import { Octavo } from './client.mjs';
 *     const octavo = new Octavo();
 *     await octavo.load({}, ({ stage, loaded, total }) => console.log(stage, loaded / total));
 *     const messages = [{ role: 'user', content: 'Hello!' }];
 *     const answer = await octavo.chat.completions.create({ messages });
 *     for await (const chunk of octavo.chat.completions.create({ messages, stream: true })) {
 *       console.log(chunk.choices[0].delta.content ?? "");
 *     }
 *
 * If the GPU is lost, loads and answers go on by themselves; `octavo.addEventListener("recovery",
 * ({ detail }) => ...)` hears of it: detail is a Recovery of worker/protocol.mjs.
 *
 * Beyond OpenAI's shape: a stopped answer keeps its text and has finish_reason "cancelled"; the
 * think part of an answer is `reasoning_content`, in the message as in deltas; the field `octavo`
 * carries token ids and timing. `octavo.completions.create({ prompt })` goes on with a raw text.
 *
 * Conversations need no handle: what a prompt has in common with an earlier one, be it the same
 * conversation or another, is found in the KV cache. `octavo.conversation()` keeps the messages of
 * one and forks it:
 *
 *     const conversation = octavo.conversation({ temperature: 0.7 });
 *     await conversation.send("Name an animal.");
 *     const other = conversation.fork();
 *     await Promise.all([conversation.send("Where does it live?"), other.send("What does it eat?")]);
 *
 * `octavo.embeddings.create({ model, input })` takes the address of an encoder that `convert` has
 * made of an ONNX file.
 */

import { Connection } from "./connection.mjs";
import { Conversation } from "./conversation.mjs";
import { OctavoError } from "./error.mjs";
import { CHAT, TEXT } from "./shapes.mjs";
import { nothingGenerated } from "./worker/protocol.mjs";
import { VERSION } from "./worker/version.mjs";

export { Conversation, OctavoError };

/**
 * @typedef {import("./shapes.mjs").Shape} Shape
 * @typedef {import("./shapes.mjs").TextLogprobs} TextLogprobs
 * @typedef {import("../worker/protocol.mjs").LoadResult} LoadResult
 * @typedef {import("../worker/protocol.mjs").GenerateResult} GenerateResult
 * @typedef {import("../worker/protocol.mjs").Status} Status
 * @typedef {import("../worker/protocol.mjs").MeasureSizes} MeasureSizes
 * @typedef {import("../worker/protocol.mjs").Measurement} Measurement
 * @typedef {import("../worker/protocol.mjs").Inspection} Inspection
 * @typedef {import("../worker/protocol.mjs").Progress} Progress
 * @typedef {import("../worker/protocol.mjs").ListedModel} ListedModel
 * @typedef {import("../worker/protocol.mjs").ModelList} ModelList
 * @typedef {import("../worker/protocol.mjs").Delta} Delta
 * @typedef {import("../worker/protocol.mjs").Timing} Timing
 * @typedef {import("../worker/protocol.mjs").Usage} TokenUsage
 * @typedef {import("../worker/protocol.mjs").Logprobs} Logprobs
 * @typedef {import("../worker/protocol.mjs").ResponseFormat} ResponseFormat
 *
 * @typedef {object} LoadOptions
 * @property {string | File | File[]} [model] catalogue id; or address (relative to the page) of a
 *   manifest, of a .gguf or of any part of a split one; or .gguf files, all parts of one model
 * @property {boolean} [keep] whether the browser keeps the model for later visits; if absent, it
 *   does, but for files
 * @property {"auto" | "gpu" | "cpu" | "remote"} [device]
 * @property {import("../worker/protocol.mjs").RemoteServer} [remote] a server that computes with
 *   the device "remote", or with "auto" if the model cannot be loaded on any device here
 * @property {number} [context] tokens
 * @property {"auto" | "f32" | "q16" | "q8"} [activations]
 * @property {number} [kv_tokens] room that the KV cache may grow to, for all conversations together;
 *   one context if absent. If it is less, the context is that much
 * @property {number} [kv_bytes] the same in bytes; either of them
 * @property {"f16" | "q8"} [kv_precision] of what the KV cache holds: halves if absent, or bytes with
 *   scales, about half the memory
 * @property {boolean} [tune] measure kernel variants: all (true), none (false), new ones (absent)
 * @property {number} [memory_bytes] on the device that all loaded models may take together: those
 *   that are there stay, or are swapped out until they are used. If absent, they are replaced
 *
 * @typedef {object} EmbeddingOptions
 * @property {string} model address of an encoder's manifest; it is loaded when it is first asked
 * @property {string | string[]} input
 * @property {"auto" | "gpu" | "cpu"} [device]
 * @property {"float" | "base64"} [encoding_format] of vectors: numbers if absent, or base64 of
 *   32-bit floats
 * @property {AbortSignal} [signal]
 *
 * @typedef {object} Embeddings in OpenAI's shape; vectors have the length 1
 * @property {"list"} object
 * @property {string} model
 * @property {{object: "embedding", index: number, embedding: number[]}[]} data
 * @property {{prompt_tokens: number, total_tokens: number}} usage
 *
 * @typedef {{type: "text", text: string}} TextPart
 * @typedef {import("../worker/protocol.mjs").Message} PlainMessage
 * @typedef {Omit<PlainMessage, "content"> & {content?: string | TextPart[] | null}} ChatMessage
 *
 * @typedef {object} CompletionOptions others of OpenAI's that would change the answer are refused
 * @property {string} [model] as `load` was given it; the one loaded last if absent
 * @property {ChatMessage[]} [messages] needed, unless `continues` is given
 * @property {import("../worker/protocol.mjs").Tool[]} [tools] for models whose template has a place
 *   for them; the model's calls come as the text that it writes
 * @property {number} [continues] `octavo.handle` of an answer that was stopped or ended by its
 *   length: it goes on exactly where it ended
 * @property {number} [temperature] 0: always the likeliest token. What is absent of this, `top_k`,
 *   `top_p`, `min_p` and `repetition_penalty` is as the model's file recommends (`sampling` of the
 *   loaded `model`), else 0 or neutral
 * @property {number} [max_tokens]
 * @property {number} [max_completion_tokens] the newer name of max_tokens
 * @property {number} [seed]
 * @property {string | string[]} [stop] texts before which the answer ends
 * @property {"stop" | "slide"} [context_full] when the context is full, the answer ends with the
 *   code `context.full` (if absent), or the oldest tokens but the first ones are dropped
 * @property {number} [top_k] only tokens that fewer than so many are likelier than; 0: any
 * @property {number} [top_p] only tokens that likelier ones have less than this probability above
 * @property {number} [min_p] only tokens with this part of the likeliest one's probability
 * @property {number} [repetition_penalty] for tokens of conversation and answer; 1: none
 * @property {number} [presence_penalty] for tokens of the answer
 * @property {number} [frequency_penalty] the same, for each time
 * @property {Record<string, number>} [logit_bias] by token id, -100 to 100
 * @property {ResponseFormat} [response_format] JSON of a schema, or any JSON object
 * @property {boolean} [logprobs] of the answer's tokens, by the model's own logits
 * @property {number} [top_logprobs] and of so many likeliest ones, at most 20
 * @property {boolean} [stream]
 * @property {AbortSignal} [signal] an abort ends the answer as `stop()` does
 *
 * @typedef {Omit<CompletionOptions, "messages" | "tools" | "logprobs" | "top_logprobs">} SharedOptions
 *
 * @typedef {object} TextFields
 * @property {string | number[]} [prompt] a raw text, in which control tokens may be written out, or
 *   token ids; needed, unless `continues` is given
 * @property {number} [logprobs] of how many likeliest tokens they are told, beside the one that came
 *
 * @typedef {SharedOptions & TextFields} TextOptions
 *
 * @typedef {object} InspectOptions
 * @property {string} [model] as `load` was given it; the one loaded last if absent
 * @property {ChatMessage[]} [messages] a conversation
 * @property {import("../worker/protocol.mjs").Tool[]} [tools] for models whose template has a place
 *   for them
 * @property {string | number[]} [prompt] instead: a raw text, or token ids
 * @property {number} [top] how many likeliest tokens are told; 10 if absent
 * @property {AbortSignal} [signal] an abort ends it with `request.cancelled`
 *
 * @typedef {"stop" | "length" | "cancelled"} FinishReason
 * @typedef {TokenUsage & {total_tokens: number}} CompletionUsage
 *
 * @typedef {{role: "assistant", content: string, reasoning_content?: string}} AnswerMessage
 *
 * @typedef {object} ChatCompletion
 * @property {string} id
 * @property {"chat.completion"} object
 * @property {number} created seconds since 1970
 * @property {string} model
 * @property {{index: 0, message: AnswerMessage, logprobs: {content: Logprobs[]} | null,
 *   finish_reason: FinishReason}[]} choices
 * @property {CompletionUsage} usage
 * @property {{ids: number[], timing: Timing, handle?: number, code?: "context.full"}} octavo
 *
 * @typedef {object} ChatCompletionChunk
 * @property {string} id
 * @property {"chat.completion.chunk"} object
 * @property {number} created
 * @property {string} model
 * @property {{index: 0, delta: Partial<AnswerMessage>,
 *   logprobs?: {content: Logprobs[]} | null, finish_reason: FinishReason | null}[]} choices
 *   log-probabilities of the whole answer come in the last chunk
 * @property {CompletionUsage} [usage] in the last chunk
 * @property {{num_tokens: number, ids?: number[], timing?: Timing, handle?: number,
 *   code?: "context.full"}} octavo tokens so far
 *
 * @typedef {object} TextCompletion
 * @property {string} id
 * @property {"text_completion"} object
 * @property {number} created
 * @property {string} model
 * @property {{index: 0, text: string, logprobs: TextLogprobs | null,
 *   finish_reason: FinishReason}[]} choices
 * @property {CompletionUsage} usage
 * @property {ChatCompletion["octavo"]} octavo
 *
 * @typedef {object} TextCompletionChunk
 * @property {string} id
 * @property {"text_completion"} object
 * @property {number} created
 * @property {string} model
 * @property {{index: 0, text: string, logprobs: TextLogprobs | null,
 *   finish_reason: FinishReason | null}[]} choices log-probabilities come in the last chunk
 * @property {CompletionUsage} [usage] in the last chunk
 * @property {ChatCompletionChunk["octavo"]} octavo
 */

const BROKEN = ["internal", "engine.stalled", "site.changed"];
/** Options that are refused, unless they have the value that changes nothing. */
const REFUSED = {
  n: 1, tool_choice: null, functions: null, audio: null, modalities: null, best_of: 1, echo: false, suffix: null,
};
const ENCODINGS = ["float", "base64"];
/** Options that go to the worker as they are. */
const SAMPLING = /** @type {const} */ ([
  "temperature", "seed", "stop", "context_full", "top_k", "top_p", "min_p", "repetition_penalty",
  "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
  "response_format",
]);

export class Octavo extends EventTarget {
  #connection;
  #defaults;
  /** Loads that have not ended. @type {Set<Promise<LoadResult>>} */
  #loads = new Set();
  /** One for each answer that waits for a load: ends it. @type {Set<AbortController>} */
  #waiting = new Set();
  /** Names of loaded models by what `load` was given, the last one last. @type {Map<string, string>} */
  #names = new Map();

  /**
   * The worker starts at once: its runtime boots while the page gets ready to call `load`.
   *
   * With `share`, clients that load the same model with the same options share one engine, and so
   * one copy of the weights: those of this page ("page"), or of all tabs of the site ("site", or
   * true) that have the same version of it. A model that is there already is loaded at once. With
   * `memory_bytes`, all clients that give the same number share one engine and that budget.
   * Clients that load something else do not meet. Where the browser cannot share (on insecure
   * addresses), each has a worker of its own, as without `share`.
   *
   * Clients that share do not see each other, but answers take turns, `status()` is about the
   * engine that they share, `pause`, `resume` and `remove` are for all, and so is the
   * `recovery` event. `stop`, `reset`, `unload` and `close` concern only what this client has: the
   * engine goes with the last client. While a client loads another model into the same budget, or
   * measures, others wait; a load that would take the place of a model which answers another client
   * is refused by `engine.busy`.
   *
   * If the page that has the engine is closed, left or frozen, another one starts it anew: all
   * clients get the event `recovery`, with the state "moved" and then "ready", and what they asked
   * is asked again. Answers go on where their text ended; one that cannot, as it continued another
   * or as its text came out differently, ends with `engine.moved`.
   *
   * @param {LoadOptions & {workerUrl?: string | URL, share?: boolean | "page" | "site"}} [options]
   *   defaults for `load`, and `share`: false if absent
   */
  constructor({ workerUrl, share = false, ...defaults } = {}) {
    super();
    const url = workerUrl ?? new URL(`./worker/worker.mjs?version=${VERSION}`, import.meta.url);
    this.#connection = new Connection(url, share === true ? "site" : share || "", (detail) => {
      this.dispatchEvent(new CustomEvent("recovery", { detail }));
    });
    this.#defaults = defaults;
    /** Answers a conversation; leaving the loop over a stream ends its answer. */
    this.chat = {
      completions: {
        create: /** @type {Create} */ ((/** @type {any} */ options) =>
          this.#create(options, chatFields, CHAT)),
      },
    };
    /** Goes on with a raw text or token ids, without a chat template. */
    this.completions = {
      create: /** @type {CreateText} */ ((/** @type {any} */ options) =>
        this.#create(options, textFields, TEXT)),
    };
    /** Vectors of texts, by an encoder. */
    this.embeddings = { create: this.#embed.bind(this) };
  }

  /**
   * Loads a model; those that are loaded are replaced, unless `memory_bytes` is given.
   *
   * @param {LoadOptions} [options] take precedence over those of the constructor
   * @param {(progress: Progress) => void} [onProgress]
   * @returns {Promise<LoadResult>}
   */
  load(options = {}, onProgress) {
    const loading = this.#load(options, onProgress);
    this.#loads.add(loading);
    loading.then(
      () => this.#loads.delete(loading),
      (error) => {
        this.#loads.delete(loading);
        // the next load starts a fresh worker
        if (BROKEN.includes(error.code)) this.#connection.end(error);
      },
    );
    return loading;
  }

  /**
   * @param {LoadOptions} options
   * @param {(progress: Progress) => void} [onProgress]
   * @returns {Promise<LoadResult>}
   */
  async #load(options, onProgress) {
    const fields = { ...this.#defaults, ...given(options) };
    if (typeof fields.model === "string") fields.model = absolute(fields.model);
    if (typeof fields.remote?.url === "string") {
      fields.remote = { ...fields.remote, url: addressOf(fields.remote.url) };
    }
    const result = await this.#request("load", fields, onProgress);
    this.#names.delete(result.key);
    this.#names.set(result.key, result.model.name);
    return result;
  }

  /**
   * Ends the load or the answer that is running, and answers that wait for a load.
   *
   * @returns {Promise<{stopped: boolean}>}
   */
  async stop() {
    const cancelled = this.#cancelWaiting();
    const abandoned = this.#abandonLoads();
    const { stopped } = await this.#request("stop");
    return { stopped: stopped || cancelled || abandoned };
  }

  /**
   * Ends loads for whoever waits for them: the worker may be too busy starting to hear of it now.
   * True if there were any.
   */
  #abandonLoads() {
    const { loads } = this.#connection;
    for (const load of loads) {
      load.reject(new OctavoError("request.cancelled", "Loading was stopped."));
      load.isLoad = false;
      load.onEvent = undefined;
      load.reject = () => {};
      // If it had ended already, its model goes, unless another load takes its place anyway.
      const unload = () => this.#request("unload", { model: load.fields.model ?? "" });
      load.resolve = () => this.#loads.size || unload().catch(() => {});
    }
    return loads.length > 0;
  }

  /**
   * Forgets the conversation; ends answers first.
   *
   * @returns {Promise<{}>}
   */
  reset() {
    this.#cancelWaiting();
    return this.#request("reset");
  }

  /** True if any answer waited for a load. */
  #cancelWaiting() {
    const waiting = [...this.#waiting];
    waiting.forEach((answer) => answer.abort());
    return waiting.length > 0;
  }

  /**
   * What is loaded and what it does, and how much memory the models and their KV cache take.
   *
   * @returns {Promise<Status>}
   */
  status() {
    return this.#request("status");
  }

  /**
   * A conversation that keeps its messages; any number of them can go on beside each other.
   *
   * @param {import("./conversation.mjs").ConversationOptions} [options] of each answer, and the
   *   `messages` that it begins with
   * @returns {Conversation}
   */
  conversation(options = {}) {
    return new Conversation(given(options), (asked, follow) =>
      this.#create(asked, chatFields, CHAT, follow));
  }

  /**
   * How fast a loaded model is here; forgets its conversations.
   *
   * @param {MeasureSizes & import("../worker/protocol.mjs").Sampling} sizes
   * @returns {Promise<Measurement>}
   */
  async measure(sizes) {
    return this.#request("measure", withKey(sizes));
  }

  /**
   * What a model computes for the last token of a prompt, call by call, and the likeliest tokens
   * after it. Answers are not disturbed.
   *
   * @param {InspectOptions} options
   * @returns {Promise<Inspection>}
   */
  async inspect(options) {
    const { signal, messages: said, ...rest } = given(options);
    const messages = Array.isArray(said) ? said.map(plainMessage) : said;
    const fields = { ...withKey(rest), messages };
    checkSignal(signal);
    await this.#loaded();
    if (signal?.aborted) throw new OctavoError("request.cancelled", "The request was stopped.");
    return this.#stoppable("inspect", fields, signal);
  }

  /**
   * The token ids of a text; control tokens written out in it become their ids.
   *
   * @param {string} text
   * @param {{model?: string}} [which] as `load` was given it
   * @returns {Promise<number[]>}
   */
  async tokenize(text, which = {}) {
    await this.#loaded();
    return (await this.#request("tokenize", { ...withKey(which), text })).ids;
  }

  /**
   * The text of token ids, in which control tokens do not show.
   *
   * @param {number[]} ids
   * @param {{model?: string}} [which] as `load` was given it
   * @returns {Promise<string>}
   */
  async detokenize(ids, which = {}) {
    await this.#loaded();
    return (await this.#request("detokenize", { ...withKey(which), ids })).text;
  }

  /**
   * @param {EmbeddingOptions} options
   * @param {(progress: Progress) => void} [onProgress] while the encoder is loaded
   * @returns {Promise<Embeddings>}
   */
  async #embed(options, onProgress) {
    const { signal, encoding_format = "float", ...fields } = given(options);
    if (!ENCODINGS.includes(encoding_format)) {
      throw new OctavoError("request.invalid", `encoding_format should be one of ${ENCODINGS.join(", ")}.`);
    }
    checkSignal(signal);
    if (signal?.aborted) throw new OctavoError("request.cancelled", "The request was stopped.");
    const answer = await this.#stoppable("embed", withKey(fields), signal, onProgress);
    if (encoding_format === "base64") return answer;
    for (const entry of answer.data) entry.embedding = floatsOf(entry.embedding);
    return answer;
  }

  /**
   * Frees a model, or all of them.
   *
   * @param {{model?: string}} [which] as `load` was given it
   * @returns {Promise<{}>}
   */
  async unload(which = {}) {
    this.#cancelWaiting();
    return this.#request("unload", withKey(which));
  }

  /**
   * Pauses the download of the model that is being loaded; false if there is none.
   *
   * @returns {Promise<boolean>}
   */
  async pause() {
    return (await this.#request("pause")).changed;
  }

  /**
   * Lets it go on.
   *
   * @returns {Promise<boolean>}
   */
  async resume() {
    return (await this.#request("resume")).changed;
  }

  /**
   * The models of the catalogue, and others that the browser keeps.
   *
   * @returns {Promise<ModelList>}
   */
  models() {
    return this.#request("models");
  }

  /**
   * Deletes what the browser keeps of a model; a loaded one goes on.
   *
   * @param {string} model id or address
   * @returns {Promise<{bytes: number}>}
   */
  remove(model) {
    return this.#request("remove", { model: absolute(model) });
  }

  /** Ends the worker, unless others share it; whatever waits rejects with `request.cancelled`. */
  close() {
    this.#connection.close();
  }

  /**
   * @param {string} kind
   * @param {object} [fields]
   * @param {(reply: any) => void} [onEvent]
   * @param {number} [id]
   * @returns {Promise<any>}
   */
  #request(kind, fields, onEvent, id) {
    return this.#connection.request(kind, fields, onEvent, id);
  }

  /**
   * @param {Options} options
   * @param {(options: any) => object} fieldsOf what the worker gets of them
   * @param {Shape} shape
   * @param {import("./conversation.mjs").Follow} [follow] sees the answer's result first
   * @returns {Promise<any>}
   */
  #create(options, fieldsOf, shape, follow = (result) => result) {
    /** @type {Generate} */
    const generate = (asked, onDelta) => follow(this.#generate(asked, fieldsOf, onDelta));
    return options?.stream
      ? this.#stream(options, generate, shape)
      : this.#complete(options, generate, shape);
  }

  /**
   * @param {Options} options
   * @param {Generate} generate
   * @param {Shape} shape
   */
  async #complete(options, generate, shape) {
    const head = headOf(shape);
    const result = await generate(options);
    const { ids, finish_reason, usage, timing, handle, code } = result;
    return {
      ...head,
      object: shape.object,
      model: this.#nameOf(options),
      choices: [{ index: 0, ...shape.whole(result), finish_reason }],
      usage: withTotal(usage),
      octavo: { ids, timing, handle, code },
    };
  }

  /**
   * A promise of the stream that is itself the stream, so that `await` is optional.
   *
   * @param {Options} options
   * @param {Generate} generate
   * @param {Shape} shape
   */
  #stream(options, generate, shape) {
    const abort = new AbortController();
    const signal = isSignal(options.signal)
      ? AbortSignal.any([options.signal, abort.signal]) : options.signal ?? abort.signal;
    const arrivals = new Arrivals();
    const push = (/** @type {Delta} */ delta) => arrivals.push(delta);
    // sent now, not when the loop begins: a stop() after this line must find it
    arrivals.follow(generate({ ...options, signal }, push));
    const chunks = this.#chunks(options, arrivals, abort, shape);
    return Object.assign(Promise.resolve(new Stream(chunks, abort)), {
      [Symbol.asyncIterator]: () => chunks,
    });
  }

  /**
   * @param {Options} options
   * @param {Arrivals} arrivals
   * @param {AbortController} abort
   * @param {Shape} shape
   */
  async *#chunks(options, arrivals, abort, shape) {
    const head = headOf(shape);
    let num_tokens = 0;

    const chunk = (
      /** @type {object} */ choice,
      /** @type {FinishReason | null} */ finish_reason = null,
    ) => ({
      ...head,
      object: shape.chunk,
      model: this.#nameOf(options),
      choices: [{ index: 0, ...choice, finish_reason }],
      octavo: { num_tokens },
    });
    try {
      for (const choice of shape.opening) yield chunk(choice);
      for (let delta = await arrivals.next(); delta; delta = await arrivals.next()) {
        num_tokens = delta.num_tokens;
        yield chunk(shape.part(delta));
      }
      const result = await arrivals.result;
      const { ids, timing, usage, finish_reason, handle, code } = result;
      num_tokens = ids.length;
      const last = chunk(shape.last(result), finish_reason);
      const octavo = { num_tokens, ids, timing, handle, code };
      yield { ...last, usage: withTotal(usage), octavo };
    } finally {
      // reached early when the caller leaves the loop: the engine must be free afterwards
      abort.abort();
      await arrivals.result.catch(() => {});
    }
  }

  /** @param {Options} options */
  #nameOf({ model }) {
    const name = model == null ? [...this.#names.values()].at(-1) : this.#names.get(absolute(model));
    return name ?? "";
  }

  /**
   * Sends the request before it returns, unless a model is being loaded: that is waited for.
   *
   * @param {Options} options
   * @param {(options: any) => object} fieldsOf
   * @param {(delta: Delta) => void} [onDelta]
   * @returns {Promise<GenerateResult>}
   */
  async #generate(options, fieldsOf, onDelta) {
    const asked = given(options);
    const { signal } = asked;
    checkSignal(signal);
    const fields = fieldsOf(asked);
    const answer = new AbortController();
    const ends = signal ? AbortSignal.any([signal, answer.signal]) : answer.signal;
    this.#waiting.add(answer);
    try {
      if (this.#loads.size) await this.#loaded(ends);
    } finally {
      this.#waiting.delete(answer);
    }
    if (ends.aborted) return nothingGenerated();
    return this.#stoppable("generate", fields, signal, onDelta);
  }

  /**
   * A request that an abort stops.
   *
   * @param {string} kind
   * @param {object} fields
   * @param {AbortSignal} [signal]
   * @param {(reply: any) => void} [onEvent]
   * @returns {Promise<any>}
   */
  async #stoppable(kind, fields, signal, onEvent) {
    const id = this.#connection.takeId();
    const stop = () => this.#request("stop", { target: id }).catch(() => {});
    signal?.addEventListener("abort", stop, { once: true });
    try {
      return await this.#request(kind, fields, onEvent, id);
    } finally {
      signal?.removeEventListener("abort", stop);
    }
  }

  /**
   * Until no model is being loaded; rejects if none of the loads succeeded.
   *
   * @param {AbortSignal} [ends] the waiting
   */
  async #loaded(ends) {
    while (this.#loads.size && !ends?.aborted) {
      const loaded = oneLoaded(this.#loads);
      await (ends ? Promise.race([aborted(ends), loaded]) : loaded);
    }
  }
}

/**
 * @typedef {{
 *   (options: CompletionOptions & {stream: true}): Promise<Stream<ChatCompletionChunk>> &
 *     AsyncIterable<ChatCompletionChunk>;
 *   (options: CompletionOptions & {stream?: false}): Promise<ChatCompletion>;
 * }} Create
 * @typedef {{
 *   (options: TextOptions & {stream: true}): Promise<Stream<TextCompletionChunk>> &
 *     AsyncIterable<TextCompletionChunk>;
 *   (options: TextOptions & {stream?: false}): Promise<TextCompletion>;
 * }} CreateText
 * @typedef {{model?: string, stream?: boolean, signal?: AbortSignal}} Options what all have
 * @typedef {(options: Options, onDelta?: (delta: Delta) => void) => Promise<GenerateResult>} Generate
 */

/** Deltas of one answer, kept until they are asked for. */
class Arrivals {
  /** @type {Delta[]} */
  #deltas = [];
  #ended = false;
  #wake = () => {};
  /** @type {Promise<GenerateResult>} */
  result = new Promise(() => {});

  /** @param {Promise<GenerateResult>} result */
  follow(result) {
    this.result = result;
    const end = () => {
      this.#ended = true;
      this.#wake();
    };
    result.then(end, end);
  }

  /** @param {Delta} delta */
  push(delta) {
    this.#deltas.push(delta);
    this.#wake();
  }

  /** @returns {Promise<Delta | undefined>} nothing after the last one */
  async next() {
    while (!this.#deltas.length && !this.#ended) {
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)));
    }
    return this.#deltas.shift();
  }
}

/**
 * Chunks of one answer; leaving the loop, or `controller.abort()`, stops the generation.
 *
 * @template Chunk
 */
class Stream {
  #chunks;

  /**
   * @param {AsyncGenerator<Chunk>} chunks
   * @param {AbortController} controller
   */
  constructor(chunks, controller) {
    this.#chunks = chunks;
    this.controller = controller;
  }

  [Symbol.asyncIterator]() {
    return this.#chunks;
  }
}

/**
 * Until all of these loads have ended; rejects if no one of them succeeded.
 *
 * @param {Iterable<Promise<LoadResult>>} loads
 */
async function oneLoaded(loads) {
  const outcomes = await Promise.allSettled(loads);
  const failures = outcomes.flatMap((o) => (o.status === "rejected" ? [o.reason] : []));
  if (failures.length === outcomes.length) throw failures[0];
}

/** @param {AbortSignal} signal */
function aborted(signal) {
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}

/** @param {Shape} shape */
function headOf({ prefix }) {
  return {
    id: `${prefix}-${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`,
    created: Math.floor(Date.now() / 1000),
  };
}

/** @param {CompletionOptions} options */
function chatFields(options) {
  const { continues, tools } = options;
  if (continues == null && !Array.isArray(options.messages)) {
    throw new OctavoError("request.invalid", 'The option "messages" must be a list.');
  }
  const messages = continues == null ? options.messages?.map(plainMessage) : undefined;
  return generateFields(options, { messages, tools });
}

/** @param {TextOptions} options */
function textFields(options) {
  const { continues, prompt, logprobs } = options;
  if (continues == null && typeof prompt !== "string" && !Array.isArray(prompt)) {
    throw new OctavoError("request.invalid", 'The option "prompt" must be a text or token ids.');
  }
  const told = logprobs == null ? {} : { logprobs: true, top_logprobs: logprobs };
  return generateFields({ ...options, logprobs: undefined, top_logprobs: undefined }, {
    prompt: continues == null ? prompt : undefined,
    ...told,
  });
}

/**
 * @param {CompletionOptions} options
 * @param {object} others fields of the request, which no option overrules
 */
function generateFields(options, others) {
  for (const [name, neutral] of Object.entries(REFUSED)) {
    const value = /** @type {any} */ (options)[name];
    if (value != null && value !== neutral) {
      throw new OctavoError("request.invalid", `The option "${name}" is not supported.`);
    }
  }
  const { continues } = options;
  const { model } = withKey(options);
  const max_tokens = options.max_completion_tokens ?? options.max_tokens;
  const sampling = Object.fromEntries(SAMPLING.map((name) => [name, options[name]]));
  const fields = { model, continues, max_tokens, ...sampling, ...others };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value != null));
}

/**
 * @param {ChatMessage} message
 * @returns {PlainMessage}
 */
function plainMessage(message) {
  if (message === null || typeof message !== "object") {
    throw new OctavoError("request.invalid", "A message must be an object with role and content.");
  }
  const { role, content, name, reasoning_content, tool_calls, tool_call_id } = message;
  const fields = { role, name, reasoning_content, tool_calls, tool_call_id };
  if (!Array.isArray(content)) return { ...fields, content };
  for (const part of content) {
    if (part?.type === "text" && typeof part.text === "string") continue;
    const problem = `Content of type "${part?.type}" is not supported, only parts with a text.`;
    throw new OctavoError("request.invalid", problem);
  }
  return { ...fields, content: content.map(({ text }) => text).join("") };
}

/**
 * @param {TokenUsage} usage
 * @returns {CompletionUsage}
 */
function withTotal(usage) {
  return { ...usage, total_tokens: usage.prompt_tokens + usage.completion_tokens };
}

/**
 * The options with `model` as the worker knows it.
 *
 * @template {{model?: string}} T
 * @param {T} options
 * @returns {T}
 */
function withKey(options) {
  const all = given(options);
  return all.model == null ? all : { ...all, model: absolute(all.model) };
}

/**
 * Options, which may be left out where all of them may. OctavoError request.invalid for what is none.
 *
 * @template {object} T
 * @param {T} options
 * @returns {T}
 */
function given(options) {
  if (options == null) return /** @type {T} */ ({});
  if (typeof options === "object") return options;
  throw new OctavoError("request.invalid", `The options must be an object, not ${JSON.stringify(options)}.`);
}

/** @param {unknown} signal */
function checkSignal(signal) {
  if (signal == null || isSignal(signal)) return;
  throw new OctavoError("request.invalid", 'The option "signal" must be an AbortSignal.');
}

/** Also one of another window. @param {any} signal @returns {signal is AbortSignal} */
function isSignal(signal) {
  return Object.prototype.toString.call(signal) === "[object AbortSignal]";
}

/**
 * A catalogue id stays; a URL becomes absolute, for the worker has another base than the page. What
 * is no text stays too: the worker says what is wrong with it.
 *
 * @param {string} model
 */
function absolute(model) {
  if (typeof model !== "string") return model;
  const isUrl = /[/:]|\.(json|gguf)$/i.test(model);
  return isUrl ? addressOf(model) : model;
}

/**
 * A URL relative to the page; what is none stays, for the worker to say what is wrong.
 *
 * @param {string} url
 */
function addressOf(url) {
  return URL.canParse(url, document.baseURI) ? new URL(url, document.baseURI).href : url;
}

/** Numbers of base64. @param {string} base64 of 32-bit floats */
function floatsOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  return Array.from(new Float32Array(bytes.buffer));
}
