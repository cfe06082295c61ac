/** Fields of requests to the worker, made of the options that the API's methods take. */

import { OctavoError } from "./error.mjs";

/**
 * @typedef {import("./types.mjs").ChatMessage} ChatMessage
 * @typedef {import("./types.mjs").PlainMessage} PlainMessage
 * @typedef {import("./types.mjs").CompletionOptions} CompletionOptions
 * @typedef {import("./types.mjs").TextOptions} TextOptions
 */

/** Options that are not the worker's: all others are, and it says what is wrong with them. */
const OWN = ["max_completion_tokens", "signal", "stream"];
/** Fields of all requests, which no option overrules. */
const OF_REQUESTS = ["id", "kind"];

/** Of an answer to messages. @param {CompletionOptions} options */
export function chatFields(options) {
  const { continues, messages } = options;
  if (Array.isArray(messages)) return generateFields(options, { messages: messages.map(plainMessage) });
  if (continues != null && messages == null) return generateFields(options, {});
  throw new OctavoError("request.invalid", 'The option "messages" must be a list.');
}

/** Of an answer that goes on with a raw text. @param {TextOptions} options */
export function textFields(options) {
  const { continues, prompt, logprobs } = options;
  if (continues == null && typeof prompt !== "string" && !Array.isArray(prompt)) {
    throw new OctavoError("request.invalid", 'The option "prompt" must be a text or token ids.');
  }
  return generateFields(options, logprobs == null ? {} : { logprobs: true, top_logprobs: logprobs });
}

/**
 * @param {CompletionOptions | TextOptions} options
 * @param {object} others fields of the request, which no option overrules
 */
function generateFields(options, others) {
  if (!isSwitch(options.stream)) {
    throw new OctavoError("request.invalid", 'The option "stream" must be true or false.');
  }
  const max_tokens = options.max_completion_tokens ?? options.max_tokens;
  const fields = Object.entries({ ...withKey(options), max_tokens, ...others });
  return Object.fromEntries(fields.filter(([name, value]) => value != null && !OWN.includes(name)));
}

/**
 * A message with its content as one text.
 *
 * @param {ChatMessage} message
 * @returns {PlainMessage}
 */
export function plainMessage(message) {
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
 * The options with `model` as the worker knows it.
 *
 * @template {{model?: string}} T
 * @param {T} options
 * @returns {T}
 */
export function withKey(options) {
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
export function given(options) {
  if (options == null) return /** @type {T} */ ({});
  if (typeof options !== "object") {
    throw new OctavoError("request.invalid", `The options must be an object, not ${JSON.stringify(options)}.`);
  }
  const wrong = OF_REQUESTS.find((name) => name in options);
  if (wrong) throw new OctavoError("request.invalid", `The option "${wrong}" is unknown.`);
  return options;
}

/**
 * How far an engine is shared. OctavoError request.invalid for what is none of the ways.
 *
 * @param {unknown} share
 * @returns {"" | "page" | "site"}
 */
export function scopeOf(share) {
  if (isSwitch(share)) return share ? "site" : "";
  if (share === "page" || share === "site") return share;
  throw new OctavoError("request.invalid", 'The option "share" must be true, false, "page" or "site".');
}

/** @param {unknown} onProgress */
export function checkProgress(onProgress) {
  if (onProgress == null || typeof onProgress === "function") return;
  throw new OctavoError("request.invalid", "What hears of the progress must be a function.");
}

/** @param {unknown} value */
function isSwitch(value) {
  return value == null || typeof value === "boolean";
}

/** @param {unknown} signal */
export function checkSignal(signal) {
  if (signal == null || isSignal(signal)) return;
  throw new OctavoError("request.invalid", 'The option "signal" must be an AbortSignal.');
}

/** Also one of another window. @param {any} signal @returns {signal is AbortSignal} */
export function isSignal(signal) {
  return Object.prototype.toString.call(signal) === "[object AbortSignal]";
}

/**
 * A catalogue id stays; a URL becomes absolute, for the worker has another base than the page. What
 * is no text stays too: the worker says what is wrong with it.
 *
 * @param {string} model
 */
export function absolute(model) {
  if (typeof model !== "string") return model;
  const isUrl = /[/:]|\.(json|gguf)$/i.test(model);
  return isUrl ? addressOf(model) : model;
}

/**
 * A URL relative to the page; what is none stays, for the worker to say what is wrong.
 *
 * @param {string} url
 */
export function addressOf(url) {
  return URL.canParse(url, document.baseURI) ? new URL(url, document.baseURI).href : url;
}
