/** The two shapes of OpenAI's answers: of a conversation, and of a raw text. */

/**
 * @typedef {import("../worker/protocol.mjs").GenerateResult} GenerateResult
 * @typedef {import("../worker/protocol.mjs").Delta} Delta
 * @typedef {import("../worker/protocol.mjs").Logprobs} Logprobs
 *
 * @typedef {object} Shape
 * @property {string} prefix of ids
 * @property {string} object
 * @property {string} chunk `object` of a part of an answer
 * @property {object[]} opening of choices: one for each chunk before the first text
 * @property {(result: GenerateResult) => object} whole fields of a finished answer's choice
 * @property {(delta: Delta) => object} part fields of the choice of a chunk with new text
 * @property {(result: GenerateResult) => object} last fields of the choice of the last chunk
 */

/** @type {Shape} */
export const CHAT = {
  prefix: "chatcmpl",
  object: "chat.completion",
  chunk: "chat.completion.chunk",
  opening: [{ delta: { role: "assistant", content: "" } }],
  whole: ({ text, reasoning, logprobs }) => ({
    message: { role: "assistant", content: text, ...(reasoning && { reasoning_content: reasoning }) },
    logprobs: logprobs ? { content: logprobs } : null,
  }),
  part: ({ kind, text }) => ({
    delta: kind === "reasoning" ? { reasoning_content: text } : { content: text },
  }),
  last: ({ logprobs }) => ({ delta: {}, logprobs: logprobs ? { content: logprobs } : null }),
};

/** @type {Shape} */
export const TEXT = {
  prefix: "cmpl",
  object: "text_completion",
  chunk: "text_completion",
  opening: [],
  whole: ({ text, logprobs }) => ({ text, logprobs: textLogprobs(logprobs) }),
  part: ({ text }) => ({ text, logprobs: null }),
  last: ({ logprobs }) => ({ text: "", logprobs: textLogprobs(logprobs) }),
};

/**
 * @typedef {object} TextLogprobs one entry a token, without places in the text: a character may
 *   have several tokens
 * @property {string[]} tokens
 * @property {number[]} token_logprobs
 * @property {Record<string, number>[]} top_logprobs
 */

/**
 * @param {Logprobs[] | undefined} logprobs
 * @returns {TextLogprobs | null}
 */
function textLogprobs(logprobs) {
  if (!logprobs) return null;
  return {
    tokens: logprobs.map(({ token }) => token),
    token_logprobs: logprobs.map(({ logprob }) => logprob),
    top_logprobs: logprobs.map(({ top_logprobs }) =>
      Object.fromEntries(top_logprobs.map(({ token, logprob }) => [token, logprob]))),
  };
}
