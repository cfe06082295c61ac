/**
 * Search by meaning in attached texts: each is cut into passages, an encoder makes a vector of each,
 * and those whose vectors are nearest to that of a question are found. All of it stays in memory, as
 * long as the files do: ten of 2 MB, the most that a message has, take about 50 MB.
 */

import { framed } from "./attached.mjs";
import { OctavoError } from "./error.mjs";
import { t } from "./locale.mjs";
import { cut, joined, linesOf, ranked } from "./passages.mjs";

/**
 * @typedef {import("./attached.mjs").Attachment} Attachment
 * @typedef {import("./client.mjs").Progress} Progress
 * @typedef {import("./passages.mjs").Span} Span
 * @typedef {Span & {file: Attachment, similarity: number}} Hit a passage, and the cosine with a question
 * @typedef {Omit<Progress, "stage" | "unit"> & {stage: "passages", unit: "steps"}} PassageProgress
 *
 * @typedef {object} Waiting
 * @property {AbortSignal} signal
 * @property {(progress: Progress | PassageProgress) => void} onProgress
 */

const BATCH = 16; // passages of a request: between two of them, others get their turn

export class Search {
  #octavo;
  #encoder;
  /** The passages of files, and the vectors of those that have one so far.
   * @type {WeakMap<Attachment, {passages: Span[], vectors: Float32Array[]}>} */
  #known = new WeakMap();

  /**
   * @param {import("./client.mjs").Octavo} octavo
   * @param {{model: string, device: "auto" | "gpu" | "cpu"}} encoder
   */
  constructor(octavo, encoder) {
    this.#octavo = octavo;
    this.#encoder = encoder;
  }

  /**
   * All passages of files, the nearest to a question first. What was embedded before a stop is kept.
   *
   * Rejects with an OctavoError: search.no_question, request.cancelled, or as embeddings.create does.
   *
   * @param {Attachment[]} files
   * @param {string} question
   * @param {Waiting} waiting
   * @returns {Promise<Hit[]>}
   */
  async hits(files, question, { signal, onProgress }) {
    if (!question.trim()) throw new OctavoError("search.no_question", t("search_no_question"));
    const all = files.map((file) => ({ file, ...this.#of(file) }));
    const total = 1 + all.reduce((sum, { passages }) => sum + passages.length, 0);
    const tell = () => {
      const loaded = all.reduce((sum, { vectors }) => sum + vectors.length, 0);
      onProgress({ id: 0, kind: "progress", stage: "passages", loaded, total, unit: "steps" });
    };
    const embed = (/** @type {string[]} */ input) => this.#embed(input, signal, onProgress);
    const [asked] = await embed([question]);
    tell();
    for (const { file, passages, vectors } of all) {
      while (vectors.length < passages.length) {
        const next = passages.slice(vectors.length, vectors.length + BATCH);
        vectors.push(...(await embed(next.map(({ start, end }) => file.text.slice(start, end)))));
        tell();
      }
    }
    const whole = all.flatMap(({ file, passages }) => passages.map((span) => ({ ...span, file })));
    const order = ranked(all.flatMap(({ vectors }) => vectors), asked);
    return order.map(({ at, similarity }) => ({ ...whole[at], similarity }));
  }

  /** @param {Attachment} file */
  #of(file) {
    let known = this.#known.get(file);
    if (!known) this.#known.set(file, (known = { passages: cut(file.text), vectors: [] }));
    return known;
  }

  /**
   * @param {string[]} texts
   * @param {AbortSignal} signal
   * @param {Waiting["onProgress"]} onProgress
   */
  async #embed(texts, signal, onProgress) {
    const input = texts.map((text) => text.toWellFormed());
    const { data } = await this.#octavo.embeddings.create({ ...this.#encoder, input, signal }, onProgress);
    return data.map(({ embedding }) => Float32Array.from(embedding));
  }
}

/**
 * What a message gets of the best passages: as many as there is room for, joined where they touch, in
 * the order of the texts.
 *
 * @param {Hit[]} hits the nearest first
 * @param {number} most passages
 * @param {number} room tokens
 * @param {(text: string) => Promise<number>} count tokens
 * @returns {Promise<Attachment[]>}
 */
export async function fitting(hits, most, room, count) {
  /** @type {Map<Attachment, Hit[]>} */
  const taken = new Map();
  let left = room;
  for (const hit of hits.slice(0, most)) {
    const tokens = await count(framed(passageOf(hit)));
    if (tokens > left) continue; // a shorter one may fit
    left -= tokens;
    taken.set(hit.file, [...(taken.get(hit.file) ?? []), hit]);
  }
  return [...taken].flatMap(([file, spans]) => joined(spans).map((span) => passageOf({ ...span, file })));
}

/**
 * A passage as an attachment of its own.
 *
 * @param {Hit} hit
 * @returns {Attachment}
 */
export function passageOf({ file, start, end, similarity }) {
  const text = file.text.slice(start, end);
  const [first, last] = linesOf(file.text, { start, end });
  const size = new TextEncoder().encode(text).length;
  return { name: file.name, size, text, place: { first, last, similarity } };
}
