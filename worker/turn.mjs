/** One tab at a time fetches a model; the others wait, and see meanwhile what it has kept. */

const LOOK_MS = 300;
/** Why a wait ends that was left. */
export const LEFT = new Error("The turn is not waited for any longer.");

export class Turn {
  #name;
  /** Ends the turn, if it is this tab's. @type {(() => void) | null} */
  #end = null;
  /** While it is waited for. @type {{taken: Promise<void>, leave: AbortController} | null} */
  #wait = null;

  /** @param {string} manifestUrl */
  constructor(manifestUrl) {
    this.#name = `octavo-model:${manifestUrl}`;
  }

  /**
   * Resolves when it is this tab's turn, at once where the browser has no locks; rejects with the
   * reason of `signal`, with what `look` throws, or with LEFT. Who asks while it is waited for joins
   * that wait. A tab that is closed, dies, or has its download paused gives its turn up.
   *
   * @param {AbortSignal} signal
   * @param {() => Promise<void>} look is called now and then while another tab has its turn
   */
  async take(signal, look) {
    if (this.#end || !globalThis.navigator?.locks) return;
    if (!this.#wait) {
      const leave = new AbortController();
      const taken = this.#queue(AbortSignal.any([signal, leave.signal]), look);
      const wait = (this.#wait = { taken, leave });
      const end = () => this.#wait === wait && (this.#wait = null);
      taken.then(end, (reason) => {
        leave.abort(reason); // it is waited for no longer
        end();
      });
    }
    await this.#wait.taken;
  }

  /**
   * @param {AbortSignal} signal
   * @param {() => Promise<void>} look
   */
  async #queue(signal, look) {
    let isWaiting = true;
    const taken = new Promise((resolve, reject) => {
      const hold = () => new Promise((end) => resolve((this.#end = () => end(undefined))));
      navigator.locks.request(this.#name, { signal }, hold).catch(reject);
    }).finally(() => (isWaiting = false));
    const pause = () => new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    const watch = async () => {
      await Promise.race([taken, pause()]);
      for (; isWaiting; await Promise.race([taken, pause()])) await look();
    };
    await Promise.all([taken, watch()]);
  }

  end() {
    this.#end?.();
    this.#end = null;
  }

  /** Ends it, or the wait for it. */
  leave() {
    this.#wait?.leave.abort(LEFT);
    this.#wait = null;
    this.end();
  }
}
