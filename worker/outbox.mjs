/**
 * Replies on their way to the page. Text waits until a frame has passed since the last text and the
 * page has taken that; what comes meanwhile joins what waits. So a slow page makes nothing grow but
 * the text of each answer under way. An answer's first text does not wait for a frame to pass, and
 * its end takes its text along at once.
 */

/**
 * @typedef {import("./protocol.mjs").Delta} Delta
 * @typedef {import("./protocol.mjs").Reply} Reply
 *
 * @typedef {object} Clock
 * @property {() => number} now milliseconds
 * @property {(work: () => void, ms: number) => void} later
 */

export const FRAME_MS = 16;

/** @type {Clock} */
const CLOCK = {
  now: () => performance.now(),
  later: (work, ms) => void setTimeout(work, ms),
};

export class Outbox {
  #post;
  #clock;
  /** By request, in the order of their first texts. @type {Map<number, Delta[]>} */
  #waiting = new Map();
  /** Requests that text came of. @type {Set<number>} */
  #begun = new Set();
  #untaken = 0;
  #lastPost = -Infinity;
  #isTimed = false;

  /**
   * @param {(reply: Reply) => void} post
   * @param {Clock} [clock]
   */
  constructor(post, clock = CLOCK) {
    this.#post = post;
    this.#clock = clock;
  }

  /** @param {Reply | Delta} reply */
  send(reply) {
    if ("num_tokens" in reply) {
      this.#join(reply);
      if (this.#begun.has(reply.id) || this.#untaken) return this.#flush();
      return this.#flushOne(reply.id);
    }
    if (reply.kind === "result" || reply.kind === "error") {
      this.#flushOne(reply.id);
      this.#begun.delete(reply.id);
    }
    this.#post(reply);
  }

  /** Text joins text of its kind, behind what waits already. @param {Delta} delta */
  #join(delta) {
    const deltas = this.#waiting.get(delta.id) ?? [];
    const last = deltas.at(-1);
    if (last?.kind === delta.kind) deltas.pop();
    deltas.push({ ...delta, text: (last?.kind === delta.kind ? last.text : "") + delta.text });
    this.#waiting.set(delta.id, deltas);
  }

  /** The page has taken a `deltas` message. */
  taken() {
    this.#untaken = Math.max(0, this.#untaken - 1);
    this.#flush();
  }

  /** Posts what waits, now or as soon as a frame has passed; if the page is slow, `taken` will. */
  #flush() {
    if (!this.#waiting.size || this.#untaken || this.#isTimed) return;
    const wait = this.#lastPost + FRAME_MS - this.#clock.now();
    if (wait <= 0) return this.#postDeltas([...this.#waiting.values()].flat());
    this.#isTimed = true;
    this.#clock.later(() => {
      this.#isTimed = false;
      this.#flush();
    }, wait);
  }

  /** @param {number} id */
  #flushOne(id) {
    const deltas = this.#waiting.get(id);
    if (deltas) this.#postDeltas(deltas);
  }

  /** @param {Delta[]} deltas */
  #postDeltas(deltas) {
    for (const { id } of deltas) {
      this.#waiting.delete(id);
      this.#begun.add(id);
    }
    this.#untaken++;
    this.#lastPost = this.#clock.now();
    this.#post({ kind: "deltas", deltas });
  }
}
