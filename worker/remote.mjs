/**
 * A nested worker that answers questions: `Remote` asks, `serve` is the other side. What takes long
 * without the GPU is done there, so that Python's thread stays free.
 */

/**
 * @typedef {{id: number, question: any}} Question
 * @typedef {{id: number, value?: any, error?: string}} Answer
 * @typedef {{resolve: (value: any) => void, reject: (error: Error) => void}} Pending
 */

export class Remote {
  #worker;
  /** @type {Map<number, Pending>} */
  #pending = new Map();
  #nextId = 1;
  /** @type {Error | null} */
  #broken = null;

  /** @param {URL} url of a module that calls `serve` */
  constructor(url) {
    this.#worker = new Worker(url, { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#settle(data);
    this.#worker.onerror = (event) => this.#end(new Error(event.message || `${url} cannot run`));
  }

  /**
   * @param {any} question
   * @returns {Promise<any>}
   */
  ask(question) {
    if (this.#broken) return Promise.reject(this.#broken);
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#worker.postMessage({ id, question });
    });
  }

  /** @param {Answer} answer */
  #settle({ id, value, error }) {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (error === undefined) pending?.resolve(value);
    else pending?.reject(new Error(error));
  }

  /** Ends the worker; what it has not answered is rejected. */
  close() {
    this.#end(new Error("The helper has been closed."));
  }

  /** @param {Error} reason */
  #end(reason) {
    this.#broken ??= reason;
    this.#worker.terminate();
    for (const { reject } of this.#pending.values()) reject(reason);
    this.#pending.clear();
  }
}

/**
 * Answers every question by `answer`; buffers of what it returns are moved, not copied.
 *
 * @param {(question: any) => Promise<any>} answer
 */
export function serve(answer) {
  globalThis.onmessage = async ({ data }) => {
    const { id, question } = /** @type {Question} */ (data);
    try {
      const value = await answer(question);
      const moved = ArrayBuffer.isView(value) ? [value.buffer] : [];
      self.postMessage({ id, value }, { transfer: moved });
    } catch (error) {
      self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
    }
  };
}
