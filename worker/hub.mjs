/**
 * Where clients come to an engine that they share. Those of the page that owns this worker bring a
 * port each. Those of other tabs ask on a channel that all who look for this engine know, and talk
 * on one of their own. A client that goes without a word is noticed by the lock that it held.
 *
 * The page that owns the worker sends
 *
 *     {kind: "share"}                   first of all: the worker is for several clients
 *     {kind: "client", client}          with a port: a client of the page
 *     {kind: "open", group}             from now on, other tabs find the engine by this name
 *     {kind: "move", client, group, id} the same, if no other client is there
 *     {kind: "ping", id}
 *
 * and gets {kind: "done", id, ok} for the last two, and {kind: "empty"} when the last client has
 * left; after that, none can come.
 */

import { Router } from "./router.mjs";
import { clientChannel, clientLock, hubChannel } from "./sharing.mjs";

/**
 * @typedef {MessagePort | BroadcastChannel} Way
 * @typedef {{kind: "join", client: string} | {kind: "here", engine: string} | {kind: "welcome",
 *   client: string, engine: string} | {kind: "crashed", reason: string}} HubMessage
 * @typedef {{kind: "client", client: string} | {kind: "open", group: string} | {kind: "move",
 *   client: string, group: string, id: number} | {kind: "ping", id: number}} Order
 * @typedef {{kind: "done", id: number, ok: boolean} | {kind: "empty"}} Notice
 */

export class Hub {
  #router;
  #tell;
  #engine = crypto.randomUUID();
  /** Where other tabs ask. @type {BroadcastChannel | null} */
  #hub = null;
  /** Of each client, how it is talked to. @type {Map<string, {way: Way, watch: AbortController}>} */
  #ways = new Map();
  #isClosed = false;

  /**
   * @param {(request: any) => void} deliver to the engine
   * @param {(notice: Notice) => void} tell the page that owns the worker
   */
  constructor(deliver, tell) {
    this.#tell = tell;
    this.#router = new Router(deliver, () => this.#close());
  }

  /** What the engine says. @param {import("./protocol.mjs").Reply |
   *   import("./protocol.mjs").Delta} reply */
  send(reply) {
    this.#router.send(reply);
  }

  /** @param {MessageEvent} event from the page that owns the worker */
  obey({ data, ports }) {
    const order = /** @type {Order} */ (data);
    switch (order.kind) {
      case "client":
        return this.#join(order.client, ports[0]);
      case "open":
        return this.#open(order.group);
      case "move": {
        const ok = !this.#isClosed && this.#router.size === 1 && this.#ways.has(order.client);
        if (ok) this.#open(order.group);
        return this.#tell({ kind: "done", id: order.id, ok });
      }
      case "ping":
        return this.#tell({ kind: "done", id: order.id, ok: true });
    }
  }

  /** @param {string} group */
  #open(group) {
    this.#hub?.close();
    const hub = new BroadcastChannel(hubChannel(group));
    hub.onmessage = ({ data }) => {
      const message = /** @type {HubMessage} */ (data);
      if (message.kind !== "join") return;
      this.#join(message.client, new BroadcastChannel(clientChannel(message.client)));
      this.#say(hub, { kind: "welcome", client: message.client, engine: this.#engine });
    };
    this.#hub = hub;
    this.#say(hub, { kind: "here", engine: this.#engine });
  }

  /**
   * @param {BroadcastChannel} hub
   * @param {HubMessage} message
   */
  #say(hub, message) {
    hub.postMessage(message);
  }

  /**
   * @param {string} client
   * @param {Way} way
   */
  #join(client, way) {
    if (this.#isClosed || this.#ways.has(client)) return way.close();
    const watch = new AbortController();
    this.#ways.set(client, { way, watch });
    this.#router.join(client, (message) => {
      if (!this.#ways.has(client)) return; // text that waited for its frame
      way.postMessage(message);
      if (message.kind === "left") this.#forget(client);
    });
    way.onmessage = ({ data }) => this.#router.receive(client, data);
    const { signal } = watch;
    navigator.locks.request(clientLock(client), { signal }, () => this.#lose(client)).catch(() => {});
  }

  /** @param {string} client whose page is gone */
  #lose(client) {
    if (!this.#ways.has(client)) return;
    this.#forget(client);
    this.#router.remove(client);
  }

  /** @param {string} client */
  #forget(client) {
    this.#ways.get(client)?.watch.abort();
    this.#ways.get(client)?.way.close();
    this.#ways.delete(client);
  }

  /** Nobody is there any longer. */
  #close() {
    this.#isClosed = true;
    this.#hub?.close();
    this.#tell({ kind: "empty" });
  }
}
