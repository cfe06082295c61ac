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
 * ({ detail }) => ...)` hears of it: detail is a Recovery.
 *
 * Beyond OpenAI's shape: a stopped answer keeps its text and has finish_reason "cancelled"; the
 * think part of an answer is `reasoning_content`, in the message as in deltas; the field `octavo`
 * carries token ids and timing. `octavo.completions.create({ prompt })` goes on with a raw text.
 *
 * An option that has no such name is refused with `request.invalid`, which says what may have been
 * meant. Of OpenAI's own, those that would change the answer are refused, and hints (`user`, `store`,
 * `reasoning_effort` and the like) mean nothing.
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

import { Stream, complete, stream } from "./completions.mjs";
import { Connection } from "./connection.mjs";
import { Conversation } from "./conversation.mjs";
import { OctavoError } from "./error.mjs";
import {
  absolute, addressOf, chatFields, checkProgress, checkSignal, given, plainMessage, scopeOf, textFields,
  withKey,
} from "./options.mjs";
import { CHAT, TEXT } from "./shapes.mjs";
import { nothingGenerated } from "./worker/replies.mjs";
import { VERSION } from "./worker/version.mjs";

export { Conversation, OctavoError, Stream };
export * from "./types.mjs";

/**
 * @import {
 *   Base64Embeddings, Create, CreateText, Delta, Embed, EmbeddingOptions, Embeddings,
 *   GenerateResult, Heard, InspectOptions, Inspection, LoadOptions, LoadResult, MeasureSizes,
 *   Measurement, ModelList, Progress, Status
 * } from "./types.mjs"
 * @import { Generate, Options } from "./completions.mjs"
 * @typedef {import("./shapes.mjs").Shape} Shape
 */

const BROKEN = ["internal", "engine.stalled", "site.changed"];
const ENCODINGS = ["float", "base64"];
/** With the type of its event. */
const Heard = /** @type {{new (): Heard}} */ (EventTarget);

export class Octavo extends Heard {
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
   * Clients that load something else do not meet; one whose load fails comes back. Where the browser
   * cannot share (on insecure addresses), each has a worker of its own, as without `share`.
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
   *   defaults for `load`, `share` (false if absent), and `workerUrl`, where the package's
   *   `worker/worker.mjs` is: beside the client if absent
   */
  constructor(options = {}) {
    super();
    const { workerUrl, share, ...defaults } = given(options);
    const url = workerUrl ?? new URL(`./worker/worker.mjs?version=${VERSION}`, import.meta.url);
    this.#connection = new Connection(url, scopeOf(share), (detail) => {
      this.dispatchEvent(new CustomEvent("recovery", { detail }));
    });
    this.#defaults = defaults;
    /**
     * Answers a conversation. While a model is being loaded, it waits; if that fails, it rejects, unless
     * it names a model that is there. Leaving the loop over a stream ends its answer; one that nobody
     * loops over goes on to its end.
     */
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
    /** Vectors of texts, of the length 1, by an encoder. */
    this.embeddings = { create: /** @type {Embed} */ (this.#embed.bind(this)) };
  }

  /**
   * Loads a model; those that are loaded are replaced, unless `memory_bytes` is given. They stay, and
   * answers go on, until the new one needs memory: by then options, address, manifest, header,
   * device and limits are known to be right. A load that fails before, or is stopped, changes
   * nothing; after one that fails later there may be no model. While one is under way, another is
   * refused by `engine.busy`.
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
    checkProgress(onProgress);
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
   * Ends all that this client has asked for and that takes time: loads, answers, also those that wait
   * for a load, embeddings, `measure` and `inspect`.
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
      const unload = (/** @type {string} */ model) => this.#request("unload", { model });
      load.resolve = ({ key }) => this.#loads.size || unload(key).catch(() => {});
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
   * @returns {Promise<Embeddings | Base64Embeddings>}
   */
  async #embed(options, onProgress) {
    checkProgress(onProgress);
    const { signal, encoding_format, ...fields } = given(options);
    const encoding = encoding_format ?? "float";
    if (!ENCODINGS.includes(encoding)) {
      throw new OctavoError("request.invalid", `encoding_format should be one of ${ENCODINGS.join(", ")}.`);
    }
    checkSignal(signal);
    if (signal?.aborted) throw new OctavoError("request.cancelled", "The request was stopped.");
    const answer = await this.#stoppable("embed", withKey(fields), signal, onProgress);
    if (encoding === "base64") return answer;
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
   * @param {(options: any) => {model?: string}} fieldsOf what the worker gets of them
   * @param {Shape} shape
   * @param {import("./conversation.mjs").Follow} [follow] sees the answer's result first
   * @returns {Promise<any>}
   */
  #create(options, fieldsOf, shape, follow = (result) => result) {
    /** @type {Generate} */
    const generate = (asked, onDelta) => follow(this.#generate(asked, fieldsOf, onDelta));
    const nameOf = () => this.#nameOf(options);
    return options?.stream
      ? stream(options, generate, shape, nameOf)
      : complete(options, generate, shape, nameOf);
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
   * @param {(options: any) => {model?: string}} fieldsOf
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
      if (this.#loads.size) {
        const loaded = this.#loaded(ends);
        // a load that fails changes nothing: the model that is named may have been there before
        const isThere = fields.model != null && this.#names.has(fields.model);
        await (isThere ? loaded.catch(() => {}) : loaded);
      }
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

/** Numbers of base64. @param {string} base64 of 32-bit floats */
function floatsOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i); // ten times as fast as `from`
  return Array.from(new Float32Array(bytes.buffer));
}
