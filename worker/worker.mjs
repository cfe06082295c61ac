/**
 * The worker: boots Pyodide, hands messages to Python's engine and its replies to the page.
 *
 * Messages cross between JavaScript and Python as JSON, so that no proxy outlives a call.
 * While Python is not up yet, requests wait here; `stop`, `reset`, `status` and `unload` are
 * answered at once, and the model download and the GPU adapter request begin beside the boot.
 */

import { Exchange } from "./exchange.mjs";
import { Gpu } from "./gpu.mjs";
import { Grammars } from "./grammars.mjs";
import { Hub } from "./hub.mjs";
import { memory } from "./memory.mjs";
import { Outbox } from "./outbox.mjs";
import { Remote } from "./remote.mjs";
import { errorReply, isId, nothingGenerated, refusalOf, resultReply, saysOnly } from "./replies.mjs";
import { STOPPABLE } from "./routes.mjs";
import { ShardStore, checkSecure } from "./shards.mjs";
import { ShardError } from "./transfer.mjs";
import { VERSION } from "./version.mjs";
import { within } from "./waits.mjs";

/**
 * @typedef {import("./protocol.mjs").Request} Request
 * @typedef {import("./protocol.mjs").Reply} Reply
 * @typedef {import("./protocol.mjs").Delta} Delta
 * @typedef {import("./protocol.mjs").Taken} Taken
 * @typedef {import("./protocol.mjs").LoadRequest} LoadRequest
 * @typedef {import("./protocol.mjs").NamedLoad} NamedLoad
 * @typedef {import("./protocol.mjs").ShardRequest} ShardRequest
 * @typedef {Exclude<Request, LoadRequest | ShardRequest> | NamedLoad} EngineRequest
 * @typedef {(json: string, id: number) => void} Entry
 * @typedef {object} Encoder
 * @property {(text: PyBytes) => Promise<Int32Array>} encode
 * @property {(texts: PyBytes) => Promise<Int32Array>} encodeAll see tokenizer.mjs
 * @property {() => void} dispose
 * @typedef {{getBuffer(type: "u8"): {data: Uint8Array<ArrayBuffer>, release(): void}}} PyBytes
 */

const PYODIDE_URL = new URL("../pyodide/", import.meta.url).href;
const CATALOGUE_URL = new URL("../models.json", import.meta.url).href;
const TOKENIZER_URL = new URL("./tokenizer.mjs", import.meta.url);
const BOOT_STEPS = 3;
const BOOT_SECONDS = 900; // also where the network is slow
const NUMPY_SECONDS = 600;
const TOKENIZER_SECONDS = 120;

const decoder = new TextDecoder();
const shards = new ShardStore(CATALOGUE_URL);
const outbox = new Outbox((message) => self.postMessage(message));

/** If several clients share this worker, they come to it. @type {Hub | null} */
let shared = null;
/** Requests that wait for Python. @type {EngineRequest[]} */
let queue = [];
/** Ids that have no final reply yet. @type {Set<number>} */
const open = new Set();
/** Loads under way that may begin anew by themselves; null for those that have, for none does so
 * twice. @type {Map<number, NamedLoad | null>} */
const repeatable = new Map();
/** Frees tokenizers that reached nobody, since their load was stopped. */
const forgotten = new FinalizationRegistry((/** @type {() => void} */ free) => free());
/** Python's entry, once it is up: starts to answer a request. @type {Entry | null} */
let handle = null;
/** Why there will be no Python. @type {ShardError | null} */
let broken = null;
let bootStep = 0;

globalThis.onmessage = (event) => {
  if (event.data?.kind === "share") shared = new Hub(receive, (message) => self.postMessage(message));
  else if (shared) shared.obey(event);
  else receive(event.data);
};
checkVersion();
if (!broken) within(BOOT_SECONDS, boot(), "Starting Python").then(start, fail);

/** @param {Request | Taken} request */
function receive(request) {
  if (request?.kind === "taken") return outbox.taken();
  const refusal = refusalOf(request, open);
  if (refusal) return self.postMessage(refusal);
  open.add(request.id);
  if (broken) return reply(failure(request.id, broken));
  if (isOfShards(request)) answerByShards(request);
  else if (request.kind !== "load") enqueue(request);
  else accept(request);
}

/** @param {EngineRequest} request */
function enqueue(request) {
  if (handle) return deliver(request);
  if (answerEarly(request)) return;
  const isFirst = !queue.some(({ kind }) => kind === "load");
  queue.push(request);
  if (request.kind === "load" && isFirst) prepare(request);
}

/**
 * @param {Request} request
 * @returns {request is ShardRequest}
 */
function isOfShards(request) {
  return ["pause", "resume", "models", "remove"].includes(request.kind);
}

/**
 * What concerns only downloads and what is kept needs no Python.
 *
 * @param {ShardRequest} request
 */
async function answerByShards(request) {
  try {
    reply(resultReply(request.id, await outcome(request)));
  } catch (error) {
    reply(failure(request.id, error));
  }
}

/** @param {import("./protocol.mjs").ShardRequest} request */
async function outcome(request) {
  switch (request.kind) {
    case "models":
      return shards.list();
    case "remove":
      return shards.remove(checkModel(request.model));
    default:
      return { changed: shards.pause(request.kind === "pause") };
  }
}

/** @param {unknown} model */
function checkModel(model) {
  if (typeof model === "string") return model;
  throw new ShardError("request.invalid", "model should be a text.");
}

/**
 * @param {number} id
 * @param {unknown} error
 */
function failure(id, error) {
  if (!(error instanceof ShardError)) console.error(error);
  const { code, message, hint } = error instanceof ShardError
    ? error
    : { code: "internal", message: reasonOf(error), hint: "" };
  return errorReply(id, code, message, hint);
}

/**
 * Begins a load, unless no model can be loaded here: that is said before anything is downloaded.
 *
 * @param {LoadRequest} request
 */
function accept(request) {
  try {
    checkSecure();
    const load = shards.take(request);
    repeatable.set(load.id, load);
    enqueue(load);
  } catch (error) {
    reply(failure(request.id, error));
  }
}

/**
 * Hands a request to Python, which answers later: requests do not wait for earlier ones to end.
 *
 * @param {EngineRequest} request
 */
function deliver(request) {
  let json;
  try {
    json = JSON.stringify(request);
  } catch (error) {
    const problem = `A request should be JSON: ${reasonOf(error)}`;
    return reply(errorReply(request.id, "request.invalid", problem));
  }
  try {
    handle?.(json, request.id);
  } catch (error) {
    console.error(error);
    if (open.has(request.id)) reply(errorReply(request.id, "internal", reasonOf(error)));
  }
}

/**
 * What Python says goes to the page, except that a load which failed because the server has
 * another version of the model by now begins anew.
 *
 * @param {Reply | Delta} message
 */
function pass(message) {
  const isShardError = message.kind === "error" && message.error.code.startsWith("shard.");
  const load = isShardError && repeatable.get(message.id);
  if (load && shards.isReplaced(load.model)) {
    repeatable.set(load.id, null);
    deliver(load);
  } else if (message.kind === "result" && repeatable.has(message.id)) replyLoaded(message);
  else reply(message);
}

/**
 * A load's result also says what the browser keeps of the model, which Python does not know.
 *
 * @param {import("./protocol.mjs").Result} result
 */
async function replyLoaded(result) {
  const kept = await shards.kept(result.value.key).catch(() => ({ kept: false }));
  reply({ ...result, value: { ...result.value, ...kept } });
}

/** @param {Reply | Delta} message */
function reply(message) {
  if (message.kind === "result" || message.kind === "error") {
    open.delete(message.id);
    repeatable.delete(message.id);
  }
  if (shared) shared.send(message);
  else outbox.send(message);
}

/**
 * What concerns only requests that still wait is answered without Python.
 *
 * @param {EngineRequest} request
 */
function answerEarly(request) {
  switch (request.kind) {
    case "status":
      reply(resultReply(request.id, earlyStatus()));
      return true;
    case "stop":
      if (request.target != null && !isId(request.target)) return false; // Python says why
      reply(resultReply(request.id, { stopped: cancelQueued(({ id, kind }) =>
        request.target == null ? STOPPABLE.includes(kind) : id === request.target) }));
      return true;
    case "reset":
      cancelQueued(({ kind }) => kind === "generate");
      reply(resultReply(request.id, {}));
      return true;
    case "unload":
      if (!saysOnly(request)) return false; // Python knows whose it is, or what is wrong
      cancelQueued(() => true);
      reply(resultReply(request.id, {}));
      return true;
    default:
      return false;
  }
}

function earlyStatus() {
  const state = queue.some(({ kind }) => kind === "load") ? "loading" : "empty";
  return { state };
}

/**
 * Ends waiting requests; true if there were any.
 *
 * @param {(request: EngineRequest) => boolean} concerns
 */
function cancelQueued(concerns) {
  const cancelled = queue.filter(concerns);
  queue = queue.filter((request) => !cancelled.includes(request));
  for (const { id, kind } of cancelled) {
    if (kind === "generate") reply(resultReply(id, nothingGenerated()));
    else reply(errorReply(id, "request.cancelled", "The request was stopped."));
  }
  if (!queue.some(({ kind }) => kind === "load")) shards.cancel();
  return cancelled.length > 0;
}

/**
 * What a load needs besides Python begins at once. Failures are met again, and reported, when
 * Python asks for the same things.
 *
 * @param {NamedLoad} load
 */
function prepare(load) {
  reportBoot(load.id);
  if (load.device === "remote") return;
  const onProgress = (/** @type {number} */ loaded, /** @type {number} */ total) =>
    reply({ id: load.id, kind: "progress", stage: "download", loaded, total, unit: "bytes" });
  shards.open(load.model, onProgress).catch(() => {});
  if (load.device !== "cpu") Gpu.prepare();
}

/** A page has to be of the version that this worker is of. */
function checkVersion() {
  const wanted = new URL(import.meta.url).searchParams.get("version");
  if (!wanted || wanted === VERSION) return;
  const message = "The site has changed since this page was opened.";
  broken = new ShardError("site.changed", message, "Reload the page.");
}

async function boot() {
  const { loadPyodide } = await import(`${PYODIDE_URL}pyodide.mjs`);
  advanceBoot();
  const pyodide = await loadPyodide({
    indexURL: PYODIDE_URL,
    lockFileURL: `${PYODIDE_URL}pyodide-lock.json`,
    packages: ["octavo"],
  });
  advanceBoot();
  const engine = pyodide.pyimport("engine.worker");
  const entry = engine.start(makeHost(pyodide));
  advanceBoot();
  return entry;
}

function advanceBoot() {
  bootStep++;
  for (const { id, kind } of queue) if (kind === "load") reportBoot(id);
}

/** @param {number} id */
function reportBoot(id) {
  const [loaded, total] = [bootStep, BOOT_STEPS];
  reply({ id, kind: "progress", stage: "runtime", loaded, total, unit: "steps" });
}

/** @param {Entry} entry */
function start(entry) {
  handle = entry;
  const waiting = queue;
  queue = [];
  waiting.forEach(deliver);
}

/** @param {unknown} error */
function fail(error) {
  console.error(error);
  const message = `The Python runtime could not start: ${reasonOf(error)}`;
  const code = error instanceof ShardError ? error.code : "internal";
  broken = new ShardError(code, message, "Try again, or reload the page.");
  shards.cancel();
  queue = [];
  for (const id of open) reply(failure(id, broken));
}

/**
 * All that Python gets of the browser.
 *
 * @param {any} pyodide
 */
function makeHost(pyodide) {
  return {
    post: (/** @type {PyBytes} */ json) => pass(JSON.parse(decoder.decode(copied(json)))),
    shards: {
      open: (/** @type {string | null} */ model, /** @type {any} */ onProgress) =>
        shards.open(model, onProgress?.copy?.()), // the original ends with this call
      read: (/** @type {number} */ i) => shards.read(i),
      cancel: () => shards.cancel(),
    },
    gpu: Gpu,
    memory,
    openTokenizer,
    openGrammars: () => new Grammars(),
    exchange: (
      /** @type {string} */ url,
      /** @type {string} */ headers,
      /** @type {string | null | undefined} */ body,
    ) => new Exchange(url, headers, body),
    now: () => performance.now(),
    installNumpy: async () => {
      const loaded = pyodide.loadPackage("micropip");
      await within(NUMPY_SECONDS, loaded, "Loading micropip");
      const installed = pyodide.pyimport("micropip").install("numpy");
      await within(NUMPY_SECONDS, installed, "Loading NumPy");
    },
  };
}

/**
 * @param {PyBytes} json a tokenizer.json
 * @returns {Promise<Encoder>}
 */
async function openTokenizer(json) {
  const remote = new Remote(TOKENIZER_URL);
  try {
    await within(TOKENIZER_SECONDS, remote.ask({ json: copied(json) }), "Reading the tokenizer");
  } catch (error) {
    remote.close();
    throw error;
  }
  const free = () => remote.close();
  /** @type {Encoder} */
  const encoder = {
    encode: (text) =>
      within(TOKENIZER_SECONDS, remote.ask({ text: copied(text) }), "Splitting a text into tokens"),
    encodeAll: (texts) =>
      within(TOKENIZER_SECONDS, remote.ask({ texts: copied(texts) }), "Splitting texts into tokens"),
    dispose: free,
  };
  forgotten.register(encoder, free);
  return encoder;
}

/**
 * Python's bytes, out of its memory.
 *
 * @param {PyBytes} bytes
 */
function copied(bytes) {
  const buffer = bytes.getBuffer("u8");
  try {
    return buffer.data.slice();
  } finally {
    buffer.release();
  }
}

/** @param {unknown} error */
function reasonOf(error) {
  return error instanceof Error ? error.message : String(error);
}
