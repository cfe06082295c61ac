/**
 * A request to a server whose reply comes in pieces of text, for engine/remote.py: it is sent once,
 * without cookies, and no redirect is followed, which might take the key elsewhere.
 */

export class Exchange {
  #abort = new AbortController();
  #response;
  /** @type {ReadableStreamDefaultReader<string> | null} */
  #reader = null;

  /**
   * @param {string} url
   * @param {string} headers JSON of an object
   * @param {string | null | undefined} body a POST of it; without one, a GET
   */
  constructor(url, headers, body) {
    this.#response = fetch(url, {
      method: body == null ? "GET" : "POST",
      headers: JSON.parse(headers),
      body,
      signal: this.#abort.signal,
      credentials: "omit",
      redirect: "error",
      cache: "no-store",
      referrerPolicy: "no-referrer",
    });
    this.#response.catch(() => {}); // whoever asks for the status hears of it
  }

  /** @returns {Promise<number>} the status, when the reply begins */
  async status() {
    return (await this.#response).status;
  }

  /** @returns {Promise<string>} the next piece of the reply; empty at its end */
  async next() {
    const { body } = await this.#response;
    if (!body) return "";
    this.#reader ??= body.pipeThrough(new TextDecoderStream()).getReader();
    const { value } = await this.#reader.read();
    return value ?? "";
  }

  /** Breaks it off, if it has not ended. */
  close() {
    this.#abort.abort();
  }
}
