/**
 * Several clients of one engine: each has ids, answers and handles of its own, and none sees or
 * disturbs those of another.
 *
 * Loads that are alike are one load: whoever asks for a model that is there gets it at once, and
 * whoever asks while it is being loaded waits for the same load. `stop`, `reset` and `unload`
 * concern what the asking client has; a model goes when the last client that loaded it has left it.
 * While one client loads or measures, requests of others that need a model wait. A load that would
 * take the place of a model which is answering another client is refused by `engine.busy`.
 */

import { Member } from "./member.mjs";
import { NO_ID, errorReply, nothingGenerated, refusalOf, resultReply, saysOnly } from "./replies.mjs";
import { Routes } from "./routes.mjs";
import { likenessOf } from "./sharing.mjs";

/**
 * @typedef {import("./protocol.mjs").Reply} Reply
 * @typedef {import("./protocol.mjs").Delta} Delta
 * @typedef {import("./protocol.mjs").Result} Result
 * @typedef {import("./protocol.mjs").ErrorReply} ErrorReply
 * @typedef {import("./protocol.mjs").Recovery} Recovery
 * @typedef {import("./protocol.mjs").Left} Left
 * @typedef {import("./routes.mjs").Message} Message
 * @typedef {import("./routes.mjs").Asker} Asker
 * @typedef {import("./routes.mjs").Route} Route
 */

const NEED_MODEL = ["generate", "measure", "inspect", "tokenize", "detokenize"];
const ALONE = ["load", "measure"]; // the engine does nothing beside them

export class Router {
  #routes;
  #emptied;
  /** @type {Map<string, Member>} */
  #clients = new Map();
  /** Models that are loaded, by the likeness of their loads. @type {Map<string, any>} */
  #loaded = new Map();
  /** Requests that wait for another client's. @type {{client: Member, message: Message}[]} */
  #held = [];
  /** The recovery that those heard of whom it does not concern. */
  #told = "";

  /**
   * @param {(request: Message) => void} deliver to the engine
   * @param {() => void} emptied is called when the last client has left
   */
  constructor(deliver, emptied) {
    this.#routes = new Routes(deliver);
    this.#emptied = emptied;
  }

  get size() {
    return this.#clients.size;
  }

  /** Nothing is asked that has no answer yet. */
  get isIdle() {
    return !this.#routes.size && !this.#held.length;
  }

  /**
   * @param {string} name of a new client
   * @param {(message: Reply | Left) => void} post
   */
  join(name, post) {
    this.#clients.set(name, new Member(post));
  }

  /**
   * @param {string} name
   * @param {Message} message
   */
  receive(name, message) {
    const client = this.#clients.get(name);
    if (!client) return;
    if (message?.kind === "taken") return client.taken();
    if (message?.kind === "leave") return this.#takeLeave(name, client);
    const refusal = refusalOf(message, client.open);
    if (refusal) return client.post(refusal);
    client.open.set(message.id, message);
    this.#accept(client, message);
  }

  /** The client is gone, and hears of nothing. @param {string} name */
  remove(name) {
    const client = this.#clients.get(name);
    if (!client) return;
    this.#clients.delete(name);
    if (!this.#clients.size) {
      this.#routes.clear(); // the engine goes, and all that it does
      this.#held = [];
      return this.#emptied();
    }
    this.#held = this.#held.filter((held) => held.client !== client);
    this.#routes.leave(client);
    this.#release(client.models);
  }

  /** What the engine says. @param {Reply | Delta} reply */
  send(reply) {
    if (reply.kind === "deltas") return; // they are put together for each client
    const route = this.#routes.get(reply.id);
    if (!route) return;
    if (reply.kind === "result" || reply.kind === "error") return this.#finish(route, reply);
    if (reply.kind === "progress") this.#follow(route, reply);
    for (const { client, id } of route.askers) client.tell({ ...reply, id });
    if (reply.kind === "recovery") this.#tellOthers(route, reply);
  }

  /**
   * @param {Member} client
   * @param {Message} message
   */
  #accept(client, message) {
    const { kind } = message;
    if (kind === "load") return this.#load(client, message);
    if (kind === "stop") return this.#stop(client, message);
    if (kind === "unload") return this.#unload(client, message);
    if (kind === "reset" && this.size > 1) return this.#reset(client, message);
    if (NEED_MODEL.includes(kind)) return this.#use(client, message);
    if (kind === "embed" && this.#isHeld(client)) return void this.#held.push({ client, message });
    this.#forward(client, message);
  }

  /**
   * @param {Member} client
   * @param {Message} message
   */
  #load(client, message) {
    const likeness = likenessOf(message);
    const loads = this.#routes.those((route) => route.kind === "load");
    const same = loads.find(([, route]) => route.likeness === likeness && !route.ends)?.[1];
    if (same && !same.askers.some((asker) => asker.client === client)) {
      same.askers.push({ client, id: message.id });
      for (const progress of same.progress.values()) client.post({ ...progress, id: message.id });
      return;
    }
    if (this.#isHeld(client)) return void this.#held.push({ client, message });
    // a load of its own may take the place of what is there, also if it was told to stop
    const known = loads.length ? undefined : this.#loaded.get(likeness);
    if (known && !this.#isOnlyOf(client, known.key)) {
      client.claim(known.key);
      return client.reply(resultReply(message.id, { ...known, load_ms: 0, variants: [] }));
    }
    const disturbed = this.#routes.those((route) => route.kind === "generate" &&
      isReplaced(route.message.model, message) && route.askers.some((asker) => asker.client !== client));
    if (disturbed.length) return client.replyBusy(message.id);
    this.#forward(client, message, likeness);
  }

  /**
   * A load's progress: once it has the device, what it takes the place of is gone, however it ends.
   *
   * @param {Route} route
   * @param {import("./protocol.mjs").Progress} progress
   */
  #follow({ message, progress: latest }, progress) {
    latest.set(progress.stage, progress);
    const isDevice = progress.stage === "device" && progress.loaded === progress.total;
    if (isDevice) this.#forget((key) => isReplaced(key, message));
  }

  /**
   * @param {Member} client
   * @param {Message} message
   */
  #use(client, message) {
    const { id, continues } = message;
    // an answer goes on by the model that began it
    const model = message.model ?? (continues == null ? [...client.models].at(-1) : undefined);
    const asked = { ...message, model };
    client.open.set(id, asked);
    if (this.#isHeld(client)) return void this.#held.push({ client, message: asked });
    const loads = this.#routes.those(({ kind, askers }) => kind === "load" && isOf(askers, client));
    const isUnknown = typeof model === "string" ? !client.models.has(model) : model === undefined;
    if (isUnknown && continues == null && !loads.length) return client.replyNotLoaded(id, model);
    const handle = client.handleOf(continues);
    if (typeof continues === "number" && handle === undefined) {
      const problem = `There is no answer ${continues} to continue.`;
      return client.reply(errorReply(id, "request.invalid", problem));
    }
    this.#forward(client, handle === undefined ? asked : { ...asked, continues: handle });
  }

  /**
   * @param {Member} client
   * @param {Message} message
   */
  #stop(client, message) {
    const { id, target } = message;
    if (target != null && !Number.isSafeInteger(target)) return this.#forward(client, message);
    const ids = target == null ? [...client.open.keys()] : [target];
    const stopped = ids.filter((each) => this.#stopOne(client, each)).length > 0;
    client.reply(resultReply(id, { stopped }));
  }

  /**
   * Ends a request of a client; whether there was one.
   *
   * @param {Member} client
   * @param {number} id
   */
  #stopOne(client, id) {
    const isMeant = (/** @type {Asker} */ asker) => asker.client === client && asker.id === id;
    const held = this.#held.find((each) => each.client === client && each.message.id === id);
    if (held) {
      this.#held = this.#held.filter((other) => other !== held);
      const { kind } = held.message;
      if (kind === "generate") client.reply(resultReply(id, nothingGenerated()));
      else client.replyStopped(id);
      return true;
    }
    const found = this.#routes.stoppable(isMeant);
    for (const [engineId, route] of found) {
      if (route.ends) return false;
      if (route.askers.length === 1) this.#routes.end(engineId, route);
      else {
        route.askers = route.askers.filter((asker) => !isMeant(asker));
        client.replyStopped(id);
      }
    }
    return found.length > 0;
  }

  /**
   * @param {Member} client
   * @param {Message} message
   */
  #reset(client, message) {
    this.#endAnswers(client, () => {
      client.forgetHandles();
      client.reply(resultReply(message.id, {}));
    });
  }

  /**
   * @param {Member} client
   * @param {Message} message
   */
  #unload(client, message) {
    const { id, model } = message;
    const isAll = model == null;
    if (!saysOnly(message, ["model"])) return this.#forward(client, message); // which says what is wrong
    if (this.size === 1 || (!isAll && typeof model !== "string")) {
      client.disclaim(isAll ? [...client.models] : [model]);
      this.#forget((key) => isAll || key === model);
      return this.#forward(client, message);
    }
    if (!isAll && !client.models.has(model)) return client.replyNotLoaded(id, model);
    const models = isAll ? [...client.models] : [model];
    client.disclaim(models);
    if (isAll) this.#stopAll(client, ({ kind }) => kind === "load");
    this.#endAnswers(client, () => {
      this.#release(models);
      client.reply(resultReply(id, {}));
    }, models);
  }

  /**
   * @param {string} name
   * @param {Member} client
   */
  #takeLeave(name, client) {
    this.#stopAll(client, () => true);
    client.when(() => !client.open.size, () => {
      client.post({ kind: "left" });
      this.remove(name);
    });
  }

  /**
   * Stops a client's answers, and calls `then` once there are none.
   *
   * @param {Member} client
   * @param {() => void} then
   * @param {string[]} [models] whose answers are meant; all if absent
   */
  #endAnswers(client, then, models) {
    const isMeant = (/** @type {Message} */ { kind, model }) =>
      kind === "generate" && (!models || models.includes(model));
    const ids = this.#stopAll(client, isMeant);
    client.when(() => !ids.some((id) => client.open.has(id)), then);
  }

  /**
   * @param {Member} client
   * @param {(request: Message) => boolean} isMeant
   */
  #stopAll(client, isMeant) {
    const ids = [...client.open].flatMap(([id, request]) => (isMeant(request) ? [id] : []));
    for (const id of ids) this.#stopOne(client, id);
    return ids;
  }

  /** Of these models, those that nobody needs go. @param {Iterable<string>} models */
  #release(models) {
    for (const model of models) {
      if ([...this.#clients.values()].some((other) => other.models.has(model))) continue;
      this.#forget((key) => key === model);
      this.#routes.ask("unload", { model });
    }
  }

  /** @param {(key: string) => boolean} isGone */
  #forget(isGone) {
    for (const [likeness, { key }] of this.#loaded) if (isGone(key)) this.#loaded.delete(likeness);
  }

  /**
   * @param {Member} client
   * @param {Message} message
   * @param {string} [likeness]
   */
  #forward(client, message, likeness) {
    this.#routes.begin(message, [{ client, id: message.id }], likeness);
  }

  /**
   * @param {Route} route
   * @param {Result | ErrorReply} reply
   */
  #finish(route, reply) {
    this.#routes.delete(reply.id);
    if (reply.kind === "result") this.#note(route, reply);
    for (const { client, id } of route.askers) client.reply(this.#own(client, reply, route, id));
    if (ALONE.includes(route.kind)) this.#releaseHeld();
  }

  /** Others may go on now; they wait again if the first of them is another load. */
  #releaseHeld() {
    const held = this.#held;
    this.#held = [];
    for (const { client, message } of held) this.#accept(client, message);
  }

  /**
   * @param {Route} route
   * @param {Result} result
   */
  #note({ kind, message, askers, likeness }, { value }) {
    if (kind !== "load") return;
    this.#forget((key) => isReplaced(key, message));
    if (askers.length) this.#loaded.set(likeness, value);
    else this.#release([value.key]); // who wanted it has left
    for (const { client } of askers) {
      if (message.memory_bytes == null) client.models.clear();
      client.claim(value.key);
    }
  }

  /**
   * The final reply as one client gets it.
   *
   * @param {Member} client
   * @param {Result | ErrorReply} reply
   * @param {Route} route
   * @param {number} id
   * @returns {Result | ErrorReply}
   */
  #own(client, reply, { kind }, id) {
    if (reply.kind === "error") return { ...reply, id };
    const { value } = reply;
    if (kind === "status") return resultReply(id, { ...value, clients: this.size });
    return kind === "generate" ? client.ownResult(id, value) : { ...reply, id };
  }

  /**
   * A recovery concerns the device of all: others hear of each step once.
   *
   * @param {Route} route
   * @param {Recovery} recovery
   */
  #tellOthers({ askers }, recovery) {
    const news = `${recovery.state} ${recovery.losses}`;
    if (news === this.#told) return;
    this.#told = news;
    for (const client of this.#clients.values()) {
      if (!isOf(askers, client)) client.post({ ...recovery, id: NO_ID });
    }
  }

  /**
   * @param {Member} client
   * @param {string} key
   */
  #isOnlyOf(client, key) {
    const those = [...this.#clients.values()].filter(({ models }) => models.has(key));
    return those.length === 1 && those[0] === client;
  }

  /** Whether another client loads or measures. @param {Member} client */
  #isHeld(client) {
    const others = this.#routes.those(({ askers }) => !isOf(askers, client));
    return others.some(([, { kind }]) => ALONE.includes(kind));
  }
}

/**
 * Whether a load takes the place of a model.
 *
 * @param {string} key
 * @param {Message} load
 */
function isReplaced(key, load) {
  return load.memory_bytes == null || key === (load.model ?? "");
}

/**
 * @param {Asker[]} askers
 * @param {Member} client
 */
function isOf(askers, client) {
  return askers.some((asker) => asker.client === client);
}
