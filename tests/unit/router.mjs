// Drives worker/router.mjs by chance: clients come, ask, stop, and go in the middle of things, and
// an engine answers in any order. Prints what was wrong, one line each, and how much was tried.
import { Router } from "../../worker/router.mjs";

const [seeds, steps] = process.argv.slice(2).map(Number);
const MODELS = ["a", "b", "c"];

/** Numbers by chance, the same for the same seed. */
function dice(seed) {
  let state = seed * 2654435761 + 1;
  return (n) => {
    state = (Math.imul(state ^ (state >>> 15), 2246822519) + 3266489917) >>> 0;
    return ((state ^ (state >>> 13)) >>> 0) % n;
  };
}

class World {
  problems = [];
  clients = new Map();
  counts = {};
  emptied = 0;
  /** At the engine. */
  open = new Map();
  loaded = new Map(); // by model: the context that it was loaded with
  answers = new Map(); // by handle: the words of its asker

  constructor(seed) {
    this.roll = dice(seed);
    this.begin();
  }

  begin() {
    const emptied = () => {
      this.emptied++;
      this.open.clear(); // its worker ends
      this.begin();
    };
    this.router = new Router((request) => this.engine(request), emptied);
  }

  wrong(text) {
    this.problems.push(text);
  }

  count(what) {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  engine(request) {
    const { id, kind, target, model, words, continues, context } = request;
    const asked = [...this.clients.values()].flatMap(({ open }) => [...open.values()]);
    if (words && continues === undefined && asked.some((other) => other.isTold && other.words === words)) {
      this.wrong(`a ${kind} is begun although it was stopped`);
    }
    if (this.open.has(id)) this.wrong(`the engine gets the id ${id} twice`);
    const loads = [...this.open.values()].filter((other) => other.kind === "load");
    if (kind === "load" && loads.some(({ ends }) => !ends)) {
      const counts = [...this.clients.values()].map(({ open }) =>
        [...open.values()].filter((other) => other.kind === "load").length);
      if (Math.max(...counts) < 2) this.wrong("two loads of two clients at once");
      return this.busy(id);
    }
    if (["generate", "tokenize"].includes(kind) && loads.length) return this.busy(id);
    this.open.set(id, { ...request, left: this.roll(4), text: "" });
    if (kind === "stop") {
      const meant = this.open.get(target);
      if (meant) meant.ends = true;
      this.open.delete(id);
      this.router.send({ id, kind: "result", value: { stopped: Boolean(meant) } });
    }
    if (kind === "load") {
      for (const other of this.open.values()) other.ends ||= other.model === model && other.id !== id;
      const have = [...this.clients.values()].filter(({ models, open }) => models.has(model) &&
        ![...open.values()].some((other) => ["load", "unload"].includes(other.kind)));
      if (!loads.length && have.length > 1 && this.loaded.get(model) === context) this.wrong(`${model} is loaded twice`);
    }
    if (kind === "unload") {
      if (model === undefined) this.loaded.clear();
      else this.loaded.delete(model);
    }
    if (kind === "reset" || (kind === "unload" && model === undefined)) {
      for (const other of this.open.values()) other.ends ||= other.kind === "generate";
    }
    if (kind === "unload") {
      for (const client of this.clients.values()) {
        const isSure = ![...client.open.values()].some((other) => other.kind === "unload");
        if (isSure && client.models.has(model)) this.wrong(`${model} is taken from ${client.name}`);
      }
    }
  }

  busy(id) {
    this.open.delete(id);
    this.router.send({ id, kind: "error", error: { code: "engine.busy", message: "", hint: "" } });
  }

  /** The engine says something. */
  say() {
    const all = [...this.open.values()];
    if (!all.length) return;
    const request = all[this.roll(all.length)];
    const { id, kind } = request;
    const end = (reply) => {
      this.open.delete(id);
      this.router.send({ id, ...reply });
    };
    const fail = (code) => end({ kind: "error", error: { code, message: "", hint: "" } });
    const result = (value) => end({ kind: "result", value });
    if (kind === "load") {
      if (request.ends) return fail("request.cancelled");
      if (request.left-- > 0) {
        const loaded = request.left ? 1 : 2;
        if (loaded === 2) this.loaded.delete(request.model);
        return this.router.send({ id, kind: "progress", stage: "device", loaded, total: 2 });
      }
      if (!this.roll(6)) return fail("shard.network");
      this.loaded.set(request.model, request.context);
      return result({ key: request.model, memory_bytes: 1 });
    }
    if (kind === "generate") {
      const said = request.continues === undefined ? request.words : this.answers.get(request.continues);
      if (!request.ends && request.left-- > 0) {
        request.text += said;
        return this.router.send({ id, kind: "delta", text: said, num_tokens: 1 });
      }
      this.answers.set(id, said);
      const finish_reason = request.ends ? "cancelled" : "length";
      return result({ text: request.text, finish_reason, handle: id, model: request.model });
    }
    result(kind === "status" ? { state: "ready" } : { model: request.model, words: request.words });
  }

  come() {
    const name = `c${this.counts.clients ?? 0}`;
    this.count("clients");
    const client = { name, open: new Map(), models: new Set(), handles: [], nextId: 1, owed: 0, texts: new Map() };
    this.clients.set(name, client);
    this.router.join(name, (message) => this.hear(client, message));
  }

  hear(client, message) {
    if (client.isGone) return this.wrong(`${client.name} hears ${message.kind} after its end`);
    if (message.kind === "left") {
      if (client.open.size) this.wrong(`${client.name} left with ${client.open.size} requests open`);
      client.isGone = true;
      this.clients.delete(client.name);
      return;
    }
    if (message.kind === "deltas") {
      client.owed++;
      for (const { id, text } of message.deltas) {
        const asked = client.open.get(id);
        if (!asked) this.wrong(`${client.name} gets text of ${id}`);
        else if (text.replaceAll(asked.words, "")) this.wrong(`${client.name} gets the text ${text}`);
        client.texts.set(id, (client.texts.get(id) ?? "") + text);
      }
      return;
    }
    const asked = client.open.get(message.id);
    if (!asked) return this.wrong(`${client.name} gets a ${message.kind} for ${message.id}`);
    if (message.kind === "progress") return;
    client.open.delete(message.id);
    this.count(`${asked.kind} ${message.kind}`);
    if (message.kind === "error") {
      this.count(message.error.code);
      if (message.error.code === "request.cancelled" && !asked.isStopped) {
        this.wrong(`${client.name}'s ${asked.kind} was stopped by somebody else`);
      }
      return;
    }
    const { value } = message;
    if (asked.kind === "load") {
      const isThere = this.loaded.get(value.key) === asked.context;
      if (!isThere && !asked.isStopped) this.wrong(`${value.key} is not what ${client.name} loaded`);
      client.models.delete(value.key);
      client.models.add(value.key);
    }
    if (asked.kind === "generate") {
      if (value.text !== (client.texts.get(message.id) ?? "")) this.wrong("an answer lacks text");
      if (value.finish_reason === "cancelled" && !asked.isStopped) {
        this.wrong(`${client.name}'s answer was stopped by somebody else`);
      }
      if (value.handle !== undefined) {
        if (value.handle !== message.id) this.wrong("a handle is not the answer's id");
        client.handles.push([value.handle, asked.words]);
      }
      // one that names none is for the model that is loaded last when its turn comes
      const isMeant = asked.wanted ? value.model === asked.wanted : client.models.has(value.model);
      const isOther = value.model && asked.wanted !== null && !asked.isStopped && !isMeant;
      if (isOther) this.wrong(`${value.model} answers for ${asked.wanted}`);
    }
    if (asked.kind === "tokenize" && value.words !== asked.words) this.wrong("somebody else's tokens");
    if (asked.kind === "reset") client.handles = [];
  }

  /** A client asks for something. */
  ask() {
    const all = [...this.clients.values()].filter(({ isLeaving }) => !isLeaving);
    if (!all.length) return this.come();
    const client = all[this.roll(all.length)];
    const id = client.nextId++;
    const words = `<${client.name} ${id}>`;
    const model = MODELS[this.roll(MODELS.length)];
    const last = [...client.models].at(-1);
    const stopAll = (isMeant) => {
      for (const other of client.open.values()) if (isMeant(other)) other.isStopped = true;
    };
    const send = (message, more = {}) => {
      client.open.set(id, { ...message, words, wanted: message.model ?? last, ...more });
      const said = ["load", "unload"].includes(message.kind) ? {} : { words };
      this.router.receive(client.name, { ...message, id, ...said });
    };
    switch (this.roll(12)) {
      case 0:
      case 1:
        stopAll(({ wanted }) => !wanted || wanted === model);
        return send({ kind: "load", model, memory_bytes: 9, context: this.roll(4) ? 1 : 2 });
      case 2: {
        const ids = [...client.open.keys()];
        const target = this.roll(2) && ids.length ? ids[this.roll(ids.length)] : undefined;
        const isMeant = (other) => target === undefined || other === client.open.get(target);
        stopAll(isMeant);
        for (const other of client.open.values()) other.isTold ||= isMeant(other);
        return send({ kind: "stop", target });
      }
      case 3:
        stopAll(({ kind }) => kind === "generate");
        return send({ kind: "reset" });
      case 4: {
        const which = this.roll(2) ? model : undefined;
        stopAll(({ wanted }) => !which || !wanted || wanted === which);
        if (which) client.models.delete(which);
        else client.models.clear();
        return send({ kind: "unload", model: which });
      }
      case 5:
        return send({ kind: "status" });
      case 6:
        return send({ kind: "tokenize" });
      case 7: {
        if (this.roll(4)) return;
        stopAll(() => true);
        client.isLeaving = true;
        return this.router.receive(client.name, { kind: "leave" });
      }
      case 8:
        if (this.roll(4)) return;
        client.isGone = true;
        this.clients.delete(client.name);
        return this.router.remove(client.name);
      case 9: {
        const [handle, said] = client.handles.at(-1) ?? [];
        if (handle === undefined) return;
        return send({ kind: "generate", continues: handle }, { words: said, wanted: null });
      }
      default:
        return send({ kind: "generate", model: this.roll(2) ? last : undefined });
    }
  }

  take() {
    for (const client of this.clients.values()) {
      while (client.owed > this.roll(2)) {
        client.owed--;
        this.router.receive(client.name, { kind: "taken" });
      }
    }
  }

  run(steps) {
    for (let i = 0; i < steps; i++) {
      const action = this.roll(10);
      if (action < 1 && this.clients.size < 5) this.come();
      else if (action < 5) this.ask();
      else if (action < 9) this.say();
      else this.take();
    }
    for (let i = 0; this.open.size && i < 1e5; i++) this.say();
    for (const client of this.clients.values()) {
      for (const [id, { kind }] of client.open) this.wrong(`${kind} ${id} of ${client.name} has no end`);
    }
    if (!this.router.isIdle) this.wrong("something is left in the router");
    const before = this.emptied;
    const names = [...this.clients.keys()];
    for (const name of names) {
      this.clients.get(name).isGone = true;
      this.clients.delete(name);
      this.router.remove(name);
    }
    if (names.length && this.emptied !== before + 1) this.wrong("nobody hears of the last one's end");
  }
}

const counts = {};
for (let seed = 1; seed <= seeds; seed++) {
  const world = new World(seed);
  world.run(steps);
  for (const problem of world.problems.slice(0, 3)) console.log(`seed ${seed}: ${problem}`);
  for (const [what, count] of Object.entries(world.counts)) counts[what] = (counts[what] ?? 0) + count;
}
console.log(JSON.stringify(counts));
process.exit(0);
