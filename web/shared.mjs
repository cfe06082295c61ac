/**
 * A client's way to an engine that several clients share: all that load the same with the same
 * options, in this page or, if the client wants that, in all tabs of the site that are of the same
 * version. One page owns the engine, the others find it by BroadcastChannel (there are no workers in
 * a SharedWorker) and wait for the lock that its owner holds: when that page is closed, crashes, is
 * frozen or left, the first of them starts the engine anew, and the others turn to that one.
 *
 * An engine is named by what is loaded there. A client that loads something else takes its engine
 * along if nobody else uses it, and else goes to another one.
 */

import { Host } from "./host.mjs";
import { clientChannel, clientLock, engineLock, hubChannel, likenessOf } from "./worker/sharing.mjs";

/**
 * @typedef {import("./connection.mjs").Link} Link
 * @typedef {import("./connection.mjs").LinkEvents} LinkEvents
 * @typedef {import("../worker/hub.mjs").HubMessage} HubMessage
 */

const LEAVE_MS = 10_000; // for answers to end
const PAGE = crypto.randomUUID?.();

/** Those of this page. @type {Set<SharedLink>} */
const links = new Set();

/** @implements {Link} */
export class SharedLink {
  name = "";
  #url;
  #scope;
  #events;
  /** What cannot be sent yet. @type {any[]} */
  #queue = [];
  #isSending = false;
  /** How the engine is talked to, once it is known. @type {MessagePort | BroadcastChannel | null} */
  #way = null;
  /** The engine, if this page owns it. @type {Host | null} */
  #host = null;
  /** What the engine is named by; empty before the first load. */
  #group = "";
  /** Loads under way for which that changed, by id. @type {Map<number, {from: string, to: string}>} */
  #moves = new Map();
  /** The engine of another tab that has answered, or that is to answer. */
  #engine = "";
  #isMoved = false;
  #isClosed = false;
  #isSuspended = false;
  /** Ends all that waits for the engine of another tab. */
  #search = new AbortController();
  #release = () => {};
  #left = () => {};

  /** Whether the browser has what it takes: on insecure addresses it has not. */
  static get isPossible() {
    return Boolean(globalThis.navigator?.locks && globalThis.BroadcastChannel && crypto.subtle);
  }

  /**
   * @param {string | URL} url of the worker
   * @param {"page" | "site"} scope
   * @param {LinkEvents} events
   */
  constructor(url, scope, events) {
    this.#url = url;
    this.#scope = scope;
    this.#events = events;
    links.add(this);
    this.#arrive();
  }

  /** @param {any} message */
  post(message) {
    if (this.#way && !this.#queue.length && message.kind !== "load") {
      return this.#way.postMessage(message);
    }
    this.#queue.push(structuredClone(message));
    this.#send();
  }

  close() {
    this.#isClosed = true;
    links.delete(this);
    this.#way?.postMessage({ kind: "leave" });
    this.#detach();
  }

  /** The engine failed. @param {string} reason */
  crashed(reason) {
    this.#detach();
    this.#events.crash(reason);
  }

  /** The engine was ended: another has to take its place. */
  deserted() {
    this.#detach();
    this.#isMoved = true;
    this.#arrive();
  }

  /** The page may be frozen from now on. */
  suspend() {
    this.#isSuspended = true;
    this.#detach();
    this.#isMoved = true;
  }

  /** The page goes on. */
  resume() {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    this.#arrive();
  }

  /** What waits goes, in order; a load may have to wait for the way to its engine. */
  async #send() {
    if (this.#isSending) return;
    this.#isSending = true;
    try {
      while (this.#way && this.#queue.length) {
        const [message] = this.#queue;
        if (message.kind === "load") await this.#go(message);
        if (message.kind === "back") await this.#enter(message.group, true);
        if (!this.#way || this.#queue[0] !== message) continue;
        this.#queue.shift();
        if (message.kind !== "back") this.#way.postMessage(message);
      }
    } finally {
      this.#isSending = false;
    }
  }

  /** @param {any} load */
  async #groupOf(load) {
    const { memory_bytes } = load;
    const what = likenessOf(memory_bytes == null ? load : { memory_bytes });
    const where = this.#scope === "page" ? PAGE : "";
    const text = JSON.stringify([String(this.#url), where, what]);
    // hashed, as names can be listed by other scripts of the site, and a load may have a key
    const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
    return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  /** To the engine of a load. @param {any} load */
  async #go(load) {
    const [from, to] = [this.#group, await this.#groupOf(load)];
    if (!this.#way) return; // it asks again when there is one
    await this.#enter(to);
    if (from && from !== to) this.#moves.set(load.id, { from, to });
  }

  /**
   * @param {string} group
   * @param {boolean} [isBack] what this client had loaded there is loaded again
   */
  async #enter(group, isBack = false) {
    if (group === this.#group || (await this.#takeAlong(group))) return;
    await this.#leave();
    if (this.#way) return; // to another engine meanwhile, which everything was asked anew
    this.#isMoved ||= isBack;
    this.#group = group;
    await this.#arrive();
  }

  /** Whether the engine has the new name: nobody else uses it, and none has that name.
   * @param {string} group */
  async #takeAlong(group) {
    const host = this.#host;
    if (!host) return false;
    const release = await ownedLock(engineLock(group), { ifAvailable: true });
    if (!release) return false;
    let ok = host === this.#host;
    if (ok && !host.group) host.open(group, release); // nobody else can know of it
    else ok &&= await host.move(this.name, group, release);
    if (ok) this.#group = group;
    else release();
    return ok;
  }

  /** What is under way ends; then the engine is left. */
  async #leave() {
    const way = this.#way;
    const isLate = await new Promise((resolve) => {
      this.#left = () => resolve(false);
      setTimeout(() => resolve(true), LEAVE_MS);
      way?.postMessage({ kind: "leave" });
    });
    if (way !== this.#way) return;
    if (isLate) this.#isMoved = true; // what is under way is asked anew
    this.#detach();
  }

  /** Finds the engine of the group, or starts it; before the first load, one for any. */
  async #arrive() {
    if (this.#isClosed || this.#isSuspended) return;
    this.#search.abort();
    const search = (this.#search = new AbortController());
    const name = (this.name = crypto.randomUUID());
    const release = await ownedLock(clientLock(name));
    if (search.signal.aborted) return release?.();
    if (release) this.#release = release;
    // where the browser refuses locks, nobody can be found
    if (!this.#group || !release) return this.#attach(new Host(this.#url));
    const host = Host.of(this.#group);
    if (host) return this.#attach(host);
    this.#askOthers(search.signal);
    this.#succeed(this.#group, search.signal);
  }

  /** @param {AbortSignal} signal */
  #askOthers(signal) {
    const { name } = this;
    const way = new BroadcastChannel(clientChannel(name));
    const hub = new BroadcastChannel(hubChannel(this.#group));
    const join = () => hub.postMessage({ kind: "join", client: name });
    way.onmessage = ({ data }) => this.#receive(data);
    hub.onmessage = ({ data }) => {
      const message = /** @type {HubMessage} */ (data);
      if (message.kind === "crashed") return this.crashed(message.reason);
      if (message.kind === "here" && message.engine !== this.#engine) {
        this.#lose();
        this.#engine = message.engine;
        join();
      }
      if (message.kind !== "welcome" || message.client !== name || this.#way) return;
      if (this.#engine && this.#engine !== message.engine) return; // it is gone by now
      this.#engine = message.engine;
      this.#connect(way);
    };
    signal.addEventListener("abort", () => {
      way.close();
      hub.close();
    });
    join();
  }

  /**
   * Owns the engine as soon as nobody else does.
   *
   * @param {string} group
   * @param {AbortSignal} signal
   */
  async #succeed(group, signal) {
    const release = await ownedLock(engineLock(group), { signal });
    if (signal.aborted || !release) return release?.();
    this.#lose();
    this.#search.abort();
    const host = new Host(this.#url);
    host.open(group, release);
    this.#attach(host);
  }

  /** The engine that was talked to is gone. */
  #lose() {
    if (this.#way) this.#isMoved = true;
    this.#way = null;
    this.#left();
  }

  /** @param {Host} host of this page */
  #attach(host) {
    this.#host = host;
    const port = host.attach(this);
    port.onmessage = ({ data }) => this.#receive(data);
    this.#connect(port);
  }

  /** @param {MessagePort | BroadcastChannel} way */
  #connect(way) {
    this.#way = way;
    if (this.#isMoved) {
      this.#isMoved = false;
      this.#queue = []; // it is all asked anew
      this.#events.moved();
    }
    this.#send();
  }

  #detach() {
    this.#search.abort();
    if (this.#host) this.#way?.close();
    this.#way = null;
    this.#engine = "";
    this.#host?.detach(this);
    this.#host = null;
    this.#release();
    this.#release = () => {};
    this.name = "";
    this.#left();
  }

  /** @param {any} message */
  #receive(message) {
    if (message.kind === "left") return this.#left();
    this.#events.receive(message);
    const move = this.#moves.get(message.id);
    if (!move || !["result", "error"].includes(message.kind)) return;
    this.#moves.delete(message.id);
    if (message.kind === "error") this.#goBack(move);
  }

  /**
   * A load has failed: what was there before has its own name again.
   *
   * @param {{from: string, to: string}} move
   */
  #goBack({ from, to }) {
    for (const later of this.#moves.values()) if (later.from === to) later.from = from;
    if (this.#group !== to) return; // a later load has moved on
    this.#queue.unshift({ kind: "back", group: from });
    this.#send();
  }
}

/**
 * A lock, as the function that gives it back; null if it is not to be had.
 *
 * @param {string} name
 * @param {LockOptions} [options]
 * @returns {Promise<(() => void) | null>}
 */
function ownedLock(name, options = {}) {
  return new Promise((resolve) => {
    const hold = (/** @type {Lock | null} */ lock) =>
      lock ? new Promise((release) => resolve(() => release(undefined))) : resolve(null);
    navigator.locks.request(name, options, hold).catch(() => resolve(null));
  });
}

/** A page that is left or frozen has no engine for others, and none that waits for its answers. */
function suspend() {
  for (const link of links) link.suspend();
  Host.endAll();
}

function resume() {
  for (const link of links) link.resume();
}

globalThis.addEventListener?.("pagehide", suspend);
globalThis.document?.addEventListener("freeze", suspend);
globalThis.document?.addEventListener("resume", resume);
globalThis.addEventListener?.("pageshow", ({ persisted }) => persisted && resume());
