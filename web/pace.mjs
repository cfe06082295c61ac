/** Rendering of what grows, some 25 times a second, and more rarely when that is slow. */

const BUSY_SHARE = 0.2; // of the main thread's time: the page must stay free for other things
const INTERVAL_MS = 40; // between two renderings: smooth enough for text

export class Pace {
  #render;
  #frame = 0;
  #next = 0;

  /** @param {() => void} render */
  constructor(render) {
    this.#render = render;
  }

  /** Renders in one of the next frames. */
  soon() {
    this.#frame ||= requestAnimationFrame(() => this.#onFrame());
  }

  /** Renders now. */
  now() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#render();
  }

  #onFrame() {
    this.#frame = 0;
    const start = performance.now();
    if (start < this.#next) return this.soon();
    this.#render();
    const end = performance.now();
    this.#next = Math.max(start + INTERVAL_MS, end + (end - start) * (1 / BUSY_SHARE - 1));
  }
}
