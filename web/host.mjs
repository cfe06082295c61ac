/**
 * An engine that this page owns and that several clients use: those of this page, and those of other
 * tabs once it can be found by a name. Whoever owns it holds the lock of that name.
 */

import { hubChannel } from "./worker/sharing.mjs";

/**
 * @typedef {import("../worker/hub.mjs").Notice} Notice
 *
 * @typedef {object} Guest a client of this page
 * @property {string} name
 * @property {(reason: string) => void} crashed
 * @property {() => void} deserted the engine was ended without a word
 */

const PATIENCE_MS = 60_000; // for a worker that has to say a word, and may be at its start
const HEARD_MS = 200; // until others have heard of a crash, and do not try the same again

/**
 * The worker of an engine.
 *
 * @param {string | URL} url
 * @param {(message: any) => void} hear what it says
 * @param {(reason: string) => void} crash it does not run, or does not go on
 * @returns {Pick<Worker, "postMessage" | "terminate">}
 */
export function startWorker(url, hear, crash) {
  let worker;
  try {
    worker = new Worker(url, { type: "module", name: "octavo" });
  } catch (error) { // of another origin, or no address
    queueMicrotask(() => crash(/** @type {Error} */ (error).message));
    return { postMessage() {}, terminate() {} };
  }
  worker.onmessage = ({ data }) => hear(data);
  worker.onerror = (event) => {
    event.preventDefault?.();
    crash(event.message || `its script could not be loaded from ${url}`);
  };
  worker.onmessageerror = () => crash("a message could not be read");
  return worker;
}

/** Engines of this page that can be found. @type {Map<string, Host>} */
const hosts = new Map();

export class Host {
  group = "";
  #release = () => {};
  #worker;
  /** @type {Set<Guest>} */
  #guests = new Set();
  /** Questions to the worker. @type {Map<number, (ok: boolean) => void>} */
  #asked = new Map();
  #nextId = 1;
  #isEnded = false;

  /** @param {string} group @returns {Host | undefined} the one of this name, if this page owns it */
  static of(group) {
    return hosts.get(group);
  }

  /** Ends all engines of this page; others may start them. */
  static endAll() {
    for (const host of hosts.values()) host.end();
  }

  /** @param {string | URL} url of the worker */
  constructor(url) {
    this.#worker = startWorker(url, (notice) => this.#hear(notice), (reason) => this.#crash(reason));
    this.#worker.postMessage({ kind: "share" });
  }

  /**
   * The engine can be found by this name.
   *
   * @param {string} group
   * @param {() => void} release gives the lock of that name back
   */
  open(group, release) {
    this.#rename(group, release);
    this.#worker.postMessage({ kind: "open", group });
  }

  /**
   * The same, if nobody but this client uses it; whether that is so.
   *
   * @param {string} client
   * @param {string} group
   * @param {() => void} release
   */
  async move(client, group, release) {
    const isMoved = await this.#ask({ kind: "move", client, group });
    if (isMoved) this.#rename(group, release);
    return isMoved;
  }

  /**
   * A port by which a client of this page talks to the engine.
   *
   * @param {Guest} guest
   */
  attach(guest) {
    const { port1, port2 } = new MessageChannel();
    this.#guests.add(guest);
    this.#worker.postMessage({ kind: "client", client: guest.name }, [port2]);
    return port1;
  }

  /** It has told the engine so itself. @param {Guest} guest */
  async detach(guest) {
    if (!this.#guests.delete(guest) || this.#isEnded) return;
    if (!this.group && !this.#guests.size) return this.end();
    await this.#ask({ kind: "ping" }); // an engine that does not answer serves nobody
  }

  end() {
    if (this.#isEnded) return;
    this.#stop();
    this.#release();
    for (const guest of [...this.#guests]) guest.deserted();
  }

  #stop() {
    this.#isEnded = true;
    this.#worker.terminate();
    if (hosts.get(this.group) === this) hosts.delete(this.group);
    for (const answer of this.#asked.values()) answer(false);
    this.#asked.clear();
  }

  /** @param {string} reason */
  #crash(reason) {
    if (this.#isEnded) return;
    this.#stop();
    if (this.group) {
      const hub = new BroadcastChannel(hubChannel(this.group));
      hub.postMessage({ kind: "crashed", reason });
      hub.close();
    }
    setTimeout(() => this.#release(), HEARD_MS);
    for (const guest of [...this.#guests]) guest.crashed(reason);
  }

  /**
   * @param {string} group
   * @param {() => void} release
   */
  #rename(group, release) {
    if (this.#isEnded) return release();
    this.#release();
    this.#release = release;
    hosts.delete(this.group);
    hosts.set((this.group = group), this);
  }

  /**
   * @param {object} order
   * @returns {Promise<boolean>} false also if nothing comes; then the engine is given up
   */
  #ask(order) {
    if (this.#isEnded) return Promise.resolve(false);
    const id = this.#nextId++;
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#crash("it does not answer"), PATIENCE_MS);
      this.#asked.set(id, (ok) => {
        clearTimeout(timer);
        resolve(ok);
      });
      this.#worker.postMessage({ ...order, id });
    });
  }

  /** @param {Notice} notice */
  #hear(notice) {
    if (notice.kind === "empty") return this.end();
    this.#asked.get(notice.id)?.(notice.ok);
    this.#asked.delete(notice.id);
  }
}
