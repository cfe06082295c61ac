/** Answers of the engine in OpenAI's shapes: whole, or as a stream of chunks. */

import { isSignal } from "./options.mjs";

/**
 * @typedef {import("./shapes.mjs").Shape} Shape
 * @typedef {import("./types.mjs").CompletionUsage} CompletionUsage
 * @typedef {import("./types.mjs").FinishReason} FinishReason
 * @typedef {import("./types.mjs").TokenUsage} TokenUsage
 * @typedef {import("../worker/protocol.mjs").Delta} Delta
 * @typedef {import("../worker/protocol.mjs").GenerateResult} GenerateResult
 *
 * @typedef {{model?: string, stream?: boolean, signal?: AbortSignal}} Options what all have
 * @typedef {(options: Options, onDelta?: (delta: Delta) => void) => Promise<GenerateResult>} Generate
 */

/**
 * @param {Options} options
 * @param {Generate} generate
 * @param {Shape} shape
 * @param {() => string} nameOf the model: it may be loaded only now
 */
export async function complete(options, generate, shape, nameOf) {
  const head = headOf(shape);
  const result = await generate(options);
  const { ids, finish_reason, usage, timing, handle, code } = result;
  return {
    ...head,
    object: shape.object,
    model: nameOf(),
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
 * @param {() => string} nameOf the model: it may be loaded only now
 */
export function stream(options, generate, shape, nameOf) {
  const abort = new AbortController();
  const signal = isSignal(options.signal)
    ? AbortSignal.any([options.signal, abort.signal]) : options.signal ?? abort.signal;
  const arrivals = new Arrivals();
  const push = (/** @type {Delta} */ delta) => arrivals.push(delta);
  // sent now, not when the loop begins: a stop() after this line must find it
  arrivals.follow(generate({ ...options, signal }, push));
  const chunks = chunksOf(arrivals, shape, nameOf);
  const end = chunks.return.bind(chunks);
  // what leaves the loop calls it: the engine must be free afterwards, also if no chunk was asked for
  chunks.return = async (value) => {
    abort.abort();
    await arrivals.result.catch(() => {});
    return end(value);
  };
  return Object.assign(Promise.resolve(new Stream(chunks, abort)), {
    [Symbol.asyncIterator]: () => chunks,
  });
}

/**
 * @param {Arrivals} arrivals
 * @param {Shape} shape
 * @param {() => string} nameOf
 */
async function* chunksOf(arrivals, shape, nameOf) {
  const head = headOf(shape);
  let num_tokens = 0;

  const chunk = (
    /** @type {object} */ choice,
    /** @type {FinishReason | null} */ finish_reason = null,
  ) => ({
    ...head,
    object: shape.chunk,
    model: nameOf(),
    choices: [{ index: 0, ...choice, finish_reason }],
    octavo: { num_tokens },
  });
  for (const choice of shape.opening) yield chunk(choice);
  for (let delta = await arrivals.next(); delta; delta = await arrivals.next()) {
    num_tokens = delta.num_tokens;
    yield chunk(shape.part(delta));
  }
  const result = await arrivals.result;
  const { ids, timing, usage, finish_reason, handle, code } = result;
  num_tokens = usage.completion_tokens;
  const last = chunk(shape.last(result), finish_reason);
  const octavo = { num_tokens, ids, timing, handle, code };
  yield { ...last, usage: withTotal(usage), octavo };
}

/** @param {Shape} shape */
function headOf({ prefix }) {
  return {
    id: `${prefix}-${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`,
    created: Math.floor(Date.now() / 1000),
  };
}

/**
 * @param {TokenUsage} usage
 * @returns {CompletionUsage}
 */
function withTotal(usage) {
  return { ...usage, total_tokens: usage.prompt_tokens + usage.completion_tokens };
}

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
 * @hideconstructor
 */
export class Stream {
  #chunks;

  /**
   * @param {AsyncGenerator<Chunk>} chunks
   * @param {AbortController} controller
   */
  constructor(chunks, controller) {
    this.#chunks = chunks;
    /** Its `abort()` does what leaving the loop does. */
    this.controller = controller;
  }

  [Symbol.asyncIterator]() {
    return this.#chunks;
  }
}
