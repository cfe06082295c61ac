/** A client of an engine that several share, as the engine's side knows it: see router.mjs. */

import { Outbox } from "./outbox.mjs";
import { errorReply, resultReply } from "./replies.mjs";

/**
 * @typedef {import("./protocol.mjs").Reply} Reply
 * @typedef {import("./protocol.mjs").Delta} Delta
 * @typedef {import("./protocol.mjs").Result} Result
 * @typedef {import("./protocol.mjs").ErrorReply} ErrorReply
 * @typedef {import("./protocol.mjs").Left} Left
 */

const MOST_HANDLES = 64; // as many as the engine keeps

export class Member {
  /** Its requests that have no final reply yet, by id. @type {Map<number, any>} */
  open = new Map();
  /** Models that it has loaded, by key, the last one last. @type {Set<string>} */
  models = new Set();
  /** The engine's handles of its answers, by its own. @type {Map<number, number>} */
  #handles = new Map();
  #outbox;
  /** Called after each final reply. @type {(() => void)[]} */
  #waiting = [];

  /** @param {(message: Reply | Left) => void} post */
  constructor(post) {
    this.post = post;
    this.#outbox = new Outbox(post);
  }

  /** It has taken a `deltas` message. */
  taken() {
    this.#outbox.taken();
  }

  /** @param {Reply | Delta} reply that is not the final one */
  tell(reply) {
    this.#outbox.send(reply);
  }

  /** @param {Result | ErrorReply} reply the final one */
  reply(reply) {
    this.open.delete(reply.id);
    this.#outbox.send(reply);
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const look of waiting) look();
  }

  /** @param {number} id */
  replyStopped(id) {
    this.reply(errorReply(id, "request.cancelled", "The request was stopped."));
  }

  /**
   * @param {number} id
   * @param {unknown} model
   */
  replyNotLoaded(id, model) {
    const which = model == null ? "No model" : `The model ${JSON.stringify(model)}`;
    const message = model == null ? `${which} is loaded.` : `${which} is not loaded.`;
    this.reply(errorReply(id, "engine.not_loaded", message, "Load it."));
  }

  /** @param {number} id of a load */
  replyBusy(id) {
    const message =
      "Another client is being answered by a model that this load would take the place of.";
    this.reply(errorReply(id, "engine.busy", message, "Wait until the answer has ended."));
  }

  /**
   * Calls `then` as soon as something is so, which final replies may change.
   *
   * @param {() => boolean} isSo
   * @param {() => void} then
   */
  when(isSo, then) {
    const look = () => (isSo() ? then() : void this.#waiting.push(look));
    look();
  }

  /** A model that it has loaded, now the last one. @param {string} key */
  claim(key) {
    this.models.delete(key);
    this.models.add(key);
  }

  /** @param {Iterable<string>} keys of models that it needs no longer */
  disclaim(keys) {
    for (const key of keys) this.models.delete(key);
  }

  /**
   * The engine's handle for one of its own.
   *
   * @param {unknown} handle
   */
  handleOf(handle) {
    return this.#handles.get(/** @type {number} */ (handle));
  }

  forgetHandles() {
    this.#handles.clear();
  }

  /**
   * The result of a `generate`, whose handle is from now on its own id.
   *
   * @param {number} id
   * @param {any} value
   */
  ownResult(id, value) {
    if (value.handle === undefined) return resultReply(id, value);
    this.#handles.delete(id);
    this.#handles.set(id, value.handle);
    const [oldest] = this.#handles.keys();
    if (this.#handles.size > MOST_HANDLES) this.#handles.delete(oldest);
    return resultReply(id, { ...value, handle: id });
  }
}
