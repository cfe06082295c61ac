/**
 * Colours of code, worked out in a worker: it starts when code needs it for the first time, and no
 * code, whatever it is, keeps the page from anything else. What it says is how long each run of
 * characters is, and of which class: the text that is shown stays the page's own.
 */

/**
 * @typedef {[name: string, length: number]} Run `name` is a class, or empty
 * @typedef {{id: number, text: string, language: string}} Request
 * @typedef {{id: number, runs: Run[] | null}} Reply null: nothing is known of this language
 */

const LONGEST = 100_000; // characters; what is longer has no colours
const PATIENCE_MS = 5000; // for one block: then the worker is ended
const NAME = /^hljs-[a-z_]+$/;
const AT_ONCE = 400; // runs that are shown between two frames

/** @type {Worker | null} */
let worker = null;
/** @type {Map<number, (runs: Run[] | null) => void>} */
const waiting = new Map();
let nextId = 1;

/**
 * Gives code its colours, if its text is still the same when they are known.
 *
 * @param {HTMLElement} code
 * @param {string} text that it shows
 * @param {string} language as the text calls it
 */
export async function colour(code, text, language) {
  if (text.length > LONGEST) return;
  const runs = await ask(text, language);
  if (!runs || code.textContent !== text) return;
  const plain = document.createTextNode(text);
  code.replaceChildren(plain);
  // in parts: many elements at once would take longer than a frame
  for (let i = 0; i < runs.length; i += AT_ONCE) {
    if (i) await new Promise(requestAnimationFrame);
    let length = 0;
    const part = document.createDocumentFragment();
    for (const [name, count] of runs.slice(i, i + AT_ONCE)) {
      part.append(runOf(name, plain.data.slice(length, length + count)));
      length += count;
    }
    plain.before(part);
    plain.deleteData(0, length);
  }
}

/**
 * @param {string} name
 * @param {string} text
 */
function runOf(name, text) {
  if (!NAME.test(name)) return document.createTextNode(text);
  const run = document.createElement("span");
  run.className = name;
  run.textContent = text;
  return run;
}

/**
 * @param {string} text
 * @param {string} language
 * @returns {Promise<Run[] | null>}
 */
function ask(text, language) {
  const id = nextId++;
  return new Promise((resolve) => {
    const timer = setTimeout(end, PATIENCE_MS);
    waiting.set(id, (runs) => {
      clearTimeout(timer);
      waiting.delete(id);
      resolve(runs);
    });
    worker ??= start();
    worker.postMessage({ id, text, language });
  });
}

function start() {
  const started = new Worker(new URL("./highlighter.mjs", import.meta.url), { type: "module" });
  started.onmessage = ({ data }) => waiting.get(data.id)?.(data.runs);
  started.onerror = (event) => {
    event.preventDefault();
    end();
  };
  return started;
}

/** What waits stays as it is; the next code starts another worker. */
function end() {
  worker?.terminate();
  worker = null;
  for (const resolve of [...waiting.values()]) resolve(null);
}
