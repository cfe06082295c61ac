/** Transfers that are tried again, given up when nothing comes, paused, and ended all at once. */

import { BusyError, ShardError, asNetwork } from "./transfer.mjs";

/**
 * @typedef {object} Retry
 * @property {number} attempts without any new byte, on network errors
 * @property {number} delay_ms before the second attempt; doubles each time
 * @property {number} stall_ms an attempt without any byte for so long counts as failed
 */

/** @type {Retry} */
export const RETRY = { attempts: 5, delay_ms: 500, stall_ms: 30_000 };
const PAUSED = new Error("paused");

export class Transfers {
  #retry;
  #end = new AbortController();
  #pause = new AbortController();
  /** Resolves when transfers may go on. */
  #resumed = Promise.withResolvers();

  /** @param {Retry} retry */
  constructor(retry) {
    this.#retry = retry;
    this.#resumed.resolve(undefined);
  }

  /** Aborted when all transfers are ended. */
  get signal() {
    return this.#end.signal;
  }

  get isPaused() {
    return this.#pause.signal.aborted && !this.signal.aborted;
  }

  /** Until it is not paused any longer, or is ended. */
  get resumed() {
    return this.#resumed.promise;
  }

  /** Ends what is under way, until `resume`. */
  pause() {
    if (this.isPaused) return;
    this.#resumed = Promise.withResolvers();
    this.#pause.abort(PAUSED);
  }

  resume() {
    if (!this.isPaused) return;
    this.#pause = new AbortController();
    this.#resumed.resolve(undefined);
  }

  /** @param {Error} reason */
  cancel(reason) {
    this.#end.abort(reason);
    this.#resumed.resolve(undefined);
  }

  /**
   * The outcome of `task`, which says when it is alive. It is tried again, later and later, until
   * several attempts in a row have made no progress; those that a pause ends do not count.
   *
   * @template T
   * @param {(signal: AbortSignal, alive: () => void) => Promise<T>} task
   * @param {() => number} [progress] how far it has come
   * @returns {Promise<T>}
   */
  async run(task, progress = () => 0) {
    let best = 0;
    for (let attempt = 1; ; attempt++) {
      await this.resumed;
      this.signal.throwIfAborted();
      const pause = this.#pause.signal;
      try {
        return await this.#withStallGuard(AbortSignal.any([this.signal, pause]), task);
      } catch (error) {
        this.signal.throwIfAborted();
        if (pause.aborted || progress() > best) attempt = 0;
        best = Math.max(best, progress());
        if (pause.aborted) continue;
        if (error instanceof ShardError || attempt >= this.#retry.attempts) throw asNetwork(error);
        const least = error instanceof BusyError ? error.delay_ms : 0;
        const delay_ms = this.#retry.delay_ms * 2 ** Math.max(attempt - 1, 0);
        await sleep(Math.max(delay_ms, least), this.signal);
      }
    }
  }

  /**
   * Gives a transfer up when it is not alive for `stall_ms`.
   *
   * @template T
   * @param {AbortSignal} outer
   * @param {(signal: AbortSignal, alive: () => void) => Promise<T>} task
   * @returns {Promise<T>}
   */
  async #withStallGuard(outer, task) {
    const inner = new AbortController();
    const giveUp = () => inner.abort(new TypeError("no data arrived"));
    const stop = () => inner.abort(outer.reason);
    let timer = setTimeout(giveUp, this.#retry.stall_ms);
    outer.addEventListener("abort", stop);
    try {
      return await task(inner.signal, () => {
        clearTimeout(timer);
        timer = setTimeout(giveUp, this.#retry.stall_ms);
      });
    } catch (error) {
      inner.abort(error); // frees the connection
      throw error;
    } finally {
      clearTimeout(timer);
      outer.removeEventListener("abort", stop);
    }
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, ms);
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    function done() {
      signal.removeEventListener("abort", abort);
      resolve();
    }
    signal.addEventListener("abort", abort, { once: true });
  });
}
