/** The engine's requests, by the engine's own ids: who asked for each. See router.mjs. */

/**
 * @typedef {import("./member.mjs").Member} Member
 * @typedef {import("./protocol.mjs").Progress} Progress
 * @typedef {any} Message as it came: what is wrong with it, the engine says
 *
 * @typedef {{client: Member, id: number}} Asker
 *
 * @typedef {object} Route a request at the engine
 * @property {string} kind
 * @property {Message} message
 * @property {Asker[]} askers several of a load; none where the router asks, or who asked has left
 * @property {string} likeness of a load
 * @property {Map<string, Progress>} progress of a load: the latest of each stage
 * @property {boolean} ends it was told to stop
 */

/** Kinds of requests that a stop ends. */
export const STOPPABLE = ["load", "generate", "measure", "inspect", "embed"];

export class Routes {
  #deliver;
  /** @type {Map<number, Route>} */
  #routes = new Map();
  #nextId = 0;

  /** @param {(request: Message) => void} deliver to the engine */
  constructor(deliver) {
    this.#deliver = deliver;
  }

  get size() {
    return this.#routes.size;
  }

  /** @param {number} id */
  get(id) {
    return this.#routes.get(id);
  }

  /** It has its final reply. @param {number} id */
  delete(id) {
    this.#routes.delete(id);
  }

  clear() {
    this.#routes.clear();
  }

  /**
   * @param {(route: Route) => boolean} isMeant
   * @returns {[number, Route][]}
   */
  those(isMeant) {
    return [...this.#routes].filter(([, route]) => isMeant(route));
  }

  /**
   * Those that a stop of an asker's would end.
   *
   * @param {(asker: Asker) => boolean} isMeant
   */
  stoppable(isMeant) {
    return this.those(({ kind, askers }) => STOPPABLE.includes(kind) && askers.some(isMeant));
  }

  /**
   * Hands a request to the engine.
   *
   * @param {Message} message
   * @param {Asker[]} askers
   * @param {string} [likeness]
   */
  begin(message, askers, likeness = "") {
    const id = this.#nextId++;
    const { kind } = message;
    const progress = new Map();
    this.#routes.set(id, { kind, message, askers, likeness, progress, ends: false });
    this.#deliver({ ...message, id });
  }

  /**
   * What the router itself wants of the engine.
   *
   * @param {string} kind
   * @param {object} fields
   */
  ask(kind, fields) {
    this.begin({ kind, ...fields }, []);
  }

  /**
   * Tells the engine to end a request, if that can be and has not been said.
   *
   * @param {number} id
   * @param {Route} route
   */
  end(id, route) {
    if (!STOPPABLE.includes(route.kind) || route.ends) return;
    route.ends = true;
    this.ask("stop", { target: id });
  }

  /** A client is gone: what nobody else asked for ends. @param {Member} client */
  leave(client) {
    for (const [id, route] of this.#routes) {
      const others = route.askers.filter((asker) => asker.client !== client);
      if (others.length === route.askers.length) continue;
      route.askers = others;
      if (!others.length) this.end(id, route);
    }
  }
}
