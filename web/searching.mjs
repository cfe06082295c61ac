/** What the page does with search: who may search, what a question gets of the files to search in. */

import { announce } from "./announcer.mjs";
import { MAX_FILES } from "./attached.mjs";
import { OctavoError } from "./error.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./attached.mjs").Attachment} Attachment
 *
 * @typedef {object} Sources
 * @property {import("./client.mjs").Octavo} octavo
 * @property {import("./settings.mjs").Settings} settings
 * @property {import("./count.mjs").TokenCount} count
 * @property {() => void} changed is called when it is known that there is an encoder
 */

const SHORTEST = 1000; // characters: there is nothing to choose from in less
const MOST = 8; // passages of a question
const MOST_UNCOUNTED = 4; // the same, where tokens cannot be counted
const LEFT = 1 / 4; // of the context, for the answer

export class Searching {
  #sources;
  #encoder = "";
  #asked = false;
  /** @type {import("./search.mjs").Search | undefined} */
  #search;
  #under = new AbortController();

  /** @param {Sources} sources */
  constructor(sources) {
    this.#sources = sources;
  }

  /** Finds out whether there is an encoder: what the address names, or the catalogue does. */
  async find() {
    if (this.#asked) return;
    this.#asked = true;
    const { octavo, settings, changed } = this.#sources;
    try {
      this.#encoder = settings.encoder || ((await octavo.models()).encoder ?? "");
    } catch {
      this.#asked = false; // the next file asks again
    }
    if (this.#encoder) changed();
  }

  /** @param {Attachment} file */
  canSearch(file) {
    return Boolean(this.#encoder) && !file.place && file.text.length >= SHORTEST;
  }

  /** Ends the search under way. */
  stop() {
    this.#under.abort();
  }

  /**
   * The files of a question, with the best passages in place of those to search in.
   *
   * Rejects with an OctavoError: as Search.hits does, or search.no_room.
   *
   * @param {string} question
   * @param {Attachment[]} files
   * @param {import("./search.mjs").Waiting["onProgress"]} onProgress
   * @returns {Promise<Attachment[]>}
   */
  async filesFor(question, files, onProgress) {
    const { signal } = (this.#under = new AbortController());
    const { fitting } = await import("./search.mjs");
    const whole = files.filter(({ searched }) => !searched);
    const hits = await (await this.#opened()).hits(
      files.filter(({ searched }) => searched), question, { signal, onProgress });
    const { count } = this.#sources;
    const counted = await count.count({ content: question, files: whole }).catch(() => null);
    const room = counted ? counted.context * (1 - LEFT) - counted.tokens : Infinity;
    const most = Math.min(counted ? MOST : MOST_UNCOUNTED, MAX_FILES - whole.length);
    const passages = await fitting(hits, most, room, (text) => (counted ? count.length(text) : Promise.resolve(0)));
    if (signal.aborted) throw new OctavoError("request.cancelled", t("search_stopped"));
    if (!passages.length) throw new OctavoError("search.no_room", t("search_no_room"), t("too_long_hint"));
    announce(t("search_found_in", { count: number(passages.length) }));
    return [...whole, ...passages];
  }

  /**
   * Shows passages without asking the model.
   *
   * @param {Attachment[]} files
   * @param {string} question
   * @param {(passage: Attachment) => void} add puts a passage into the message
   */
  async open(files, question, add) {
    const { openSearch } = await import("./search_dialog.mjs");
    const search = await this.#opened();
    await openSearch({ files, question, add, hits: (text, waiting) => search.hits(files, text, waiting) });
  }

  async #opened() {
    const { Search } = await import("./search.mjs");
    const { device } = this.#sources.settings.of("load");
    const chosen = device === "gpu" || device === "cpu" ? device : "auto";
    return (this.#search ??= new Search(this.#sources.octavo, { model: this.#encoder, device: chosen }));
  }
}
