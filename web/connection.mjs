/**
 * What a client has asked of its engine and not been answered yet. The engine is a worker of its
 * own, or one that several clients share (shared.mjs). If the page that had the shared one is gone,
 * another engine takes its place: what this client had loaded is loaded there, and what it has
 * asked is asked again. An answer that had begun is generated anew, and goes on where its text
 * ended, provided that it is the same text; else it ends with the code `engine.moved`.
 */

import { OctavoError } from "./error.mjs";
import { startWorker } from "./host.mjs";
import { SharedLink } from "./shared.mjs";
import { NO_ID, nothingGenerated } from "./worker/replies.mjs";
import { STOPPABLE } from "./worker/routes.mjs";

/**
 * @typedef {import("../worker/protocol.mjs").Reply} Reply
 * @typedef {import("../worker/protocol.mjs").Delta} Delta
 * @typedef {import("../worker/protocol.mjs").Recovery} Recovery
 *
 * @typedef {object} Link messages to and from an engine
 * @property {(message: any) => void} post throws what cannot be sent
 * @property {() => void} close
 *
 * @typedef {object} LinkEvents
 * @property {(reply: Reply) => void} receive
 * @property {(reason: string) => void} crash the engine failed
 * @property {() => void} moved another engine has taken its place, and knows nothing yet
 *
 * @typedef {object} Pending
 * @property {string} kind
 * @property {any} fields
 * @property {(value: any) => void} resolve
 * @property {(error: OctavoError) => void} reject
 * @property {(reply: any) => void} [onEvent] for all replies but the last
 * @property {boolean} [isLoad] that nobody has stopped
 * @property {boolean} [isAgain] a load that was done before, on an engine that is gone
 * @property {number} moves to other engines
 * @property {Record<Delta["kind"], string>} text that came
 * @property {Record<Delta["kind"], string>} ahead text that came before, and has to come again
 */

const MOST_MOVES = 3;
const MOVE = /** @type {const} */ ({ id: NO_ID, kind: "recovery", losses: 1 });

export class Connection {
  #url;
  #share;
  #onRecovery;
  /** @type {Link | null} */
  #link = null;
  /** @type {Map<number, Pending>} */
  #pending = new Map();
  /** The loads that have succeeded and whose models are there, by key. @type {Map<string, object>} */
  #loaded = new Map();
  #nextId = 1;
  #isClosed = false;
  /** Counts moves to other engines. */
  #moves = 0;
  #isMoving = false;

  /**
   * @param {string | URL} url of the worker
   * @param {"" | "page" | "site"} share
   * @param {(recovery: Recovery) => void} onRecovery
   */
  constructor(url, share, onRecovery) {
    this.#url = url;
    this.#share = share;
    this.#onRecovery = onRecovery;
    this.#start();
  }

  /** An id for a request. */
  takeId() {
    return this.#nextId++;
  }

  /**
   * The last reply to a request.
   *
   * @param {string} kind
   * @param {any} [fields]
   * @param {(reply: any) => void} [onEvent]
   * @param {number} [id]
   * @returns {Promise<any>}
   */
  request(kind, fields = {}, onEvent, id = this.takeId()) {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw new OctavoError("request.cancelled", "The client was closed.");
      const wrong = Object.keys(fields).find((name) => Number.isNaN(fields[name]));
      if (wrong) throw new OctavoError("request.invalid", `${wrong} should be a number, not NaN.`);
      if (!this.#link) this.#start(); // after a crash
      const [text, ahead] = [noText(), noText()];
      const pending = { kind, fields, resolve, reject, onEvent, isLoad: kind === "load", moves: 0 };
      this.#pending.set(id, { ...pending, text, ahead });
      if (this.#isMoving) return this.#wait(id);
      try {
        this.#link?.post({ ...fields, id, kind });
      } catch (error) {
        this.#pending.delete(id);
        const which = Object.keys(fields).find((name) => !canBeSent(fields[name]));
        throw new OctavoError("request.invalid", `The option "${which}" cannot be sent: ${error}`);
      }
    });
  }

  /** Loads that nobody has stopped. */
  get loads() {
    return [...this.#pending.values()].filter(({ isLoad }) => isLoad);
  }

  /** Gives the engine up; the next request starts another. @param {OctavoError} error for what waits */
  end(error) {
    this.#link?.close();
    this.#link = null;
    this.#isMoving = false;
    this.#moves++;
    this.#loaded.clear();
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { reject } of pending) reject(error);
  }

  close() {
    this.#isClosed = true;
    this.end(new OctavoError("request.cancelled", "The client was closed."));
  }

  #start() {
    /** @type {Link | null} */
    let own = null;
    const isOwn = () => own === this.#link;
    /** @type {LinkEvents} */
    const events = {
      receive: (reply) => isOwn() && this.#receive(reply),
      crash: (reason) => isOwn() && this.#crash(reason),
      moved: () => void (isOwn() && this.#move()),
    };
    this.#link = own = this.#share && SharedLink.isPossible
      ? new SharedLink(this.#url, this.#share, events)
      : openWorker(this.#url, events);
  }

  /** @param {string} reason */
  #crash(reason) {
    const hint = "Load the model again.";
    this.end(new OctavoError("internal", `The worker failed: ${reason.replace(/\.$/, "")}.`, hint));
  }

  /** @param {Reply} reply */
  #receive(reply) {
    if (reply.kind === "deltas") {
      for (const delta of reply.deltas) this.#receiveText(delta);
      this.#link?.post({ kind: "taken" });
      return;
    }
    if (reply.kind === "recovery") return this.#onRecovery(reply);
    const pending = this.#pending.get(reply.id);
    if (!pending) return;
    if (reply.kind === "progress") return pending.onEvent?.(reply);
    this.#pending.delete(reply.id);
    if (reply.kind === "result") {
      this.#note(pending, reply.value);
      return pending.resolve(reply.value);
    }
    const { code, message, hint } = reply.error;
    pending.reject(new OctavoError(code, message, hint));
  }

  /** @param {Delta} delta */
  #receiveText(delta) {
    const pending = this.#pending.get(delta.id);
    if (!pending) return;
    const { kind } = delta;
    const ahead = pending.ahead[kind];
    const known = Math.min(ahead.length, delta.text.length);
    if (ahead.slice(0, known) !== delta.text.slice(0, known)) return this.#part(delta.id, pending);
    pending.ahead[kind] = ahead.slice(known);
    const text = delta.text.slice(known);
    pending.text[kind] += text;
    if (text) pending.onEvent?.({ ...delta, text });
  }

  /**
   * An answer that was begun anew became another.
   *
   * @param {number} id
   * @param {Pending} pending
   */
  #part(id, pending) {
    this.#pending.delete(id);
    this.request("stop", { target: id }).catch(() => {});
    pending.reject(moved());
  }

  /**
   * @param {Pending} pending
   * @param {any} value
   */
  #note({ kind, fields }, value) {
    const isAll = kind === "load" ? fields.memory_bytes == null : fields.model == null;
    if (kind !== "load" && kind !== "unload") return;
    if (isAll) this.#loaded.clear();
    else this.#loaded.delete(kind === "load" ? value.key : fields.model);
    if (kind === "load") this.#loaded.set(value.key, fields);
  }

  /** Another engine: everything is asked anew. */
  async #move() {
    const move = ++this.#moves;
    this.#isMoving = true;
    for (const [id, pending] of this.#pending) {
      pending.moves++;
      const isOver = pending.kind === "load" && !pending.isLoad; // stopped, or for the engine before
      const cannot = isOver || pending.moves > MOST_MOVES || pending.fields.continues != null;
      if (!cannot) continue;
      this.#pending.delete(id);
      pending.reject(moved());
    }
    const asked = new Set(this.#pending.keys());
    try {
      await this.#loadAgain();
    } catch (error) {
      if (move !== this.#moves) return; // it moved again
      this.#fail(/** @type {OctavoError} */ (error), asked);
    }
    if (move !== this.#moves) return;
    this.#isMoving = false;
    for (const [id, pending] of [...this.#pending]) {
      const { kind, fields, text } = pending;
      pending.ahead = { ...text };
      this.#link?.post({ ...fields, id, kind });
    }
  }

  /**
   * What was loaded cannot be loaded again.
   *
   * @param {OctavoError} error
   * @param {Set<number>} asked before that
   */
  #fail(error, asked) {
    this.#loaded.clear();
    for (const [id, { kind, reject }] of this.#pending) {
      if (kind !== "generate" || !asked.has(id)) continue;
      this.#pending.delete(id);
      reject(error);
    }
    const { code, message, hint } = error;
    this.#onRecovery({ ...MOVE, state: "failed", error: { code, message, hint } });
  }

  /** What was loaded, on the engine that is there now. */
  async #loadAgain() {
    const willReplace = this.loads.some(({ fields }) => fields.memory_bytes == null);
    if (willReplace) this.#loaded.clear();
    if (!this.#loaded.size) return;
    this.#onRecovery({ ...MOVE, state: "moved" });
    for (const fields of [...this.#loaded.values()]) {
      const { device } = await this.#again(fields);
      this.#onRecovery({ ...MOVE, state: "ready", device });
    }
  }

  /**
   * @param {any} fields of a load
   * @returns {Promise<any>}
   */
  #again(fields) {
    const id = this.takeId();
    return new Promise((resolve, reject) => {
      const rest = { moves: 0, isAgain: true, text: noText(), ahead: noText() };
      this.#pending.set(id, { kind: "load", fields, resolve, reject, ...rest });
      this.#link?.post({ ...fields, id, kind: "load" });
    });
  }

  /**
   * While models are loaded again, requests wait; but what has not been asked again can be stopped.
   *
   * @param {number} id
   */
  #wait(id) {
    const { kind, fields, resolve } = /** @type {Pending} */ (this.#pending.get(id));
    const ended = { stop: STOPPABLE, reset: ["generate"] }[kind];
    if (!ended) return;
    const meant = [...this.#pending].filter(([other, { kind, isAgain }]) =>
      ended.includes(kind) && !isAgain && [undefined, other].includes(fields.target));
    for (const [other, pending] of meant) {
      this.#pending.delete(other);
      end(pending);
    }
    this.#pending.delete(id);
    resolve(kind === "stop" ? { stopped: meant.length > 0 } : {});
  }
}

/**
 * A worker for one client.
 *
 * @param {string | URL} url
 * @param {LinkEvents} events
 * @returns {Link}
 */
function openWorker(url, { receive, crash }) {
  const worker = startWorker(url, receive, crash);
  return { post: (message) => worker.postMessage(message), close: () => worker.terminate() };
}

/** @param {unknown} value */
function canBeSent(value) {
  try {
    structuredClone(value);
    return true;
  } catch {
    return false;
  }
}

/** Ends a request that was stopped before its engine heard of it. @param {Pending} pending */
function end({ kind, resolve, reject, text }) {
  if (kind !== "generate") return reject(new OctavoError("request.cancelled", "The request was stopped."));
  resolve({ ...nothingGenerated(), text: text.delta, reasoning: text.reasoning });
}

function noText() {
  return { delta: "", reasoning: "" };
}

function moved() {
  const message = "The page that computed the answer is gone, and the answer could not go on.";
  return new OctavoError("engine.moved", message, "Ask again.");
}
