/** Fields of requests to the worker, made of the options that the API's methods take. */

import { OctavoError } from "./error.mjs";

/**
 * @typedef {import("./types.mjs").ChatMessage} ChatMessage
 * @typedef {import("./types.mjs").PlainMessage} PlainMessage
 * @typedef {import("./types.mjs").CompletionOptions} CompletionOptions
 * @typedef {import("./types.mjs").TextOptions} TextOptions
 */

/** OpenAI's options that are refused, unless they have the value that changes nothing. */
const REFUSED = {
  n: 1, tool_choice: null, functions: null, audio: null, modalities: null, best_of: 1, echo: false, suffix: null,
};
/** OpenAI's other options that mean nothing here, or are no more than a hint. */
const IGNORED = [
  "function_call", "metadata", "moderation", "parallel_tool_calls", "prediction", "prompt_cache_key",
  "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "safety_identifier",
  "service_tier", "store", "stream_options", "user", "verbosity", "web_search_options",
];
/** Options that are not the worker's: all others are, and it says what is wrong with them. */
const OWN = [...Object.keys(REFUSED), ...IGNORED, "max_completion_tokens", "signal", "stream"];

/** Of an answer to messages. @param {CompletionOptions} options */
export function chatFields(options) {
  const { continues, tools } = options;
  if (continues == null && !Array.isArray(options.messages)) {
    throw new OctavoError("request.invalid", 'The option "messages" must be a list.');
  }
  const messages = continues == null ? options.messages?.map(plainMessage) : undefined;
  return generateFields(options, { messages, tools });
}

/** Of an answer that goes on with a raw text. @param {TextOptions} options */
export function textFields(options) {
  const { continues, prompt, logprobs } = options;
  if (continues == null && typeof prompt !== "string" && !Array.isArray(prompt)) {
    throw new OctavoError("request.invalid", 'The option "prompt" must be a text or token ids.');
  }
  const told = logprobs == null ? {} : { logprobs: true, top_logprobs: logprobs };
  return generateFields(options, { prompt: continues == null ? prompt : undefined, ...told });
}

/**
 * @param {CompletionOptions | TextOptions} options
 * @param {object} others fields of the request, which no option overrules
 */
function generateFields(options, others) {
  for (const [name, neutral] of Object.entries(REFUSED)) {
    const value = /** @type {any} */ (options)[name];
    if (value != null && value !== neutral) {
      throw new OctavoError("request.invalid", `The option "${name}" is not supported.`);
    }
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
  if (typeof options === "object") return options;
  throw new OctavoError("request.invalid", `The options must be an object, not ${JSON.stringify(options)}.`);
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
