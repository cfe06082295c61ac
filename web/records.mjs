/** What this tab has measured: speed of its answers, times to their first tokens, error codes. It
 * holds numbers and codes only, nothing that was said. */

/**
 * @typedef {import("./client.mjs").ChatCompletionChunk} Chunk
 * @typedef {import("./client.mjs").Timing} Timing
 *
 * @typedef {object} AnswerRecord
 * @property {string} model
 * @property {number} prompt_tokens
 * @property {number} cached_tokens
 * @property {number} completion_tokens
 * @property {string} finish
 * @property {Timing} timing
 */

const SAMPLE_MS = 250; // a speed is taken over that long
const GAP_SECONDS = 0.1; // around the place where an answer follows another
const MOST_SAMPLES = 1200;
const MOST_ANSWERS = 20;
const MOST_ERRORS = 10;

/** Sends "change" when an answer begins or ends, a load has ended, or something has failed. */
export class Records extends EventTarget {
  /** Seconds of generating, one answer behind the other. @type {number[]} */
  seconds = [];
  /** Tokens a second at these times; null between two answers. @type {(number | null)[]} */
  speeds = [];
  /** The last ones, the newest at the end. @type {AnswerRecord[]} */
  answers = [];
  /** @type {{code: string, at: number}[]} at: of performance.now() */
  errors = [];

  /** An answer begins. */
  begin() {
    this.changed();
    return new Growing((seconds, speed) => this.#add(seconds, speed), (answer) => {
      this.answers = [...this.answers, answer].slice(-MOST_ANSWERS);
      this.changed();
    });
  }

  /** @param {string} code */
  fail(code) {
    this.errors = [...this.errors, { code, at: performance.now() }].slice(-MOST_ERRORS);
    this.changed();
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  /**
   * @param {number} seconds that the speed was taken over
   * @param {number | null} speed
   */
  #add(seconds, speed) {
    const last = this.seconds.at(-1) ?? 0;
    this.seconds = [...this.seconds, last + seconds].slice(-MOST_SAMPLES);
    this.speeds = [...this.speeds, speed].slice(-MOST_SAMPLES);
  }
}

/** An answer under way. */
class Growing {
  #add;
  #ended;
  #isSampled = false;
  /** When the last sample ended, and tokens by then. */
  #at = 0;
  #tokens = 0;

  /**
   * @param {(seconds: number, speed: number | null) => void} add
   * @param {(answer: AnswerRecord) => void} ended
   */
  constructor(add, ended) {
    this.#add = add;
    this.#ended = ended;
  }

  /** @param {number} tokens so far */
  count(tokens) {
    const now = performance.now();
    const ms = now - this.#at;
    if (this.#at && ms >= SAMPLE_MS) this.#sample(ms / 1000, ((tokens - this.#tokens) / ms) * 1000);
    else if (this.#at || !tokens) return;
    this.#at = now;
    this.#tokens = tokens;
  }

  /** @param {Chunk} last */
  end({ model, choices, usage, octavo: { timing } }) {
    if (!usage || !timing) return;
    const { prompt_tokens, cached_tokens, completion_tokens } = usage;
    const speed = timing.decode_tokens_per_s;
    // Of an answer that was too short for a sample.
    if (!this.#isSampled && speed > 0) this.#sample((completion_tokens - 1) / speed, speed);
    const finish = choices[0].finish_reason ?? "";
    this.#ended({ model, prompt_tokens, cached_tokens, completion_tokens, finish, timing });
  }

  /** The first one of an answer begins a line of its own. @param {number} seconds @param {number} speed */
  #sample(seconds, speed) {
    if (!this.#isSampled) {
      this.#add(GAP_SECONDS, null);
      this.#add(GAP_SECONDS, speed);
    }
    this.#isSampled = true;
    this.#add(seconds, speed);
  }
}
