/**
 * The bench page of embeddings: sentences a second, from texts to vectors.
 *
 * Address parameters: `model` (the address of an encoder's manifest), `device` as for the page
 * itself; `lengths` (tokens of a sentence, control tokens included) and `batches` (sentences of a
 * request), both separated by commas, few and short if absent and there is no real GPU; `seconds`
 * (for each of these); `start` and `report` as for bench.html.
 *
 * In the folder that `python -m tests.bench.peers.embeddings_site` makes, `peer` (the name of a
 * file in peers/) measures another engine on the same weights beside, in turns, and compares the
 * vectors; and `facts.json` beside the manifest tells what the plans take.
 *
 * The result is shown as a table and left in `window.benchResult`.
 */

import { COMMON } from "./bench_text.mjs";
import { Octavo } from "./client.mjs";
import { byId } from "./dom.mjs";
import { add, address, median, rows, say, secondsSince, spread, whenStarted } from "./report.mjs";
import { seeded } from "./seeded.mjs";

/**
 * @typedef {object} Encoder
 * @property {string} name with its version
 * @property {string} note its settings, in words
 * @property {(texts: string[]) => Promise<ArrayLike<number>[]>} embed vectors of length 1
 *
 * @typedef {(manifest: URL, device: string) => Promise<Encoder>} Load what a file in peers/ exports
 *   as `load`
 */

const MODEL = "models/minilm/manifest.json";
const ON_GPU = { lengths: [16, 128, 512], batches: [1, 32] };
const SLOWLY = { lengths: [16], batches: [1, 4] };
const SECONDS = 3;
const MIN_RUNS = 3;
const AROUND = 2; // control tokens of a text

const device = address.get("device") ?? "gpu";
const seconds = Number(address.get("seconds") ?? SECONDS);

whenStarted(measureAll, { rows });

async function measureAll() {
  const manifest = new URL(address.get("model") ?? MODEL, location.href);
  const about = await describe();
  const { lengths, batches } = about.kind === "cpu" || about.software ? SLOWLY : ON_GPU;
  const encoders = [await loaded("octavo", () => loadOctavo(manifest))];
  const peer = address.get("peer");
  if (peer) {
    /** @type {{load: Load}} */
    const { load } = await import(`./peers/${peer}.mjs`);
    encoders.push(await loaded("peer", () => load(manifest, device)));
  }
  byId("device").textContent = encoders.map(({ name }) => name).join(" and ");
  await addFacts(manifest);
  for (const length of numbers("lengths") ?? lengths) {
    for (const batch of numbers("batches") ?? batches) await measure(encoders, length, batch);
  }
  return {
    date: new Date().toISOString(),
    user_agent: navigator.userAgent,
    device: about,
    model: { name: (await (await fetch(manifest)).json()).name },
    cores: navigator.hardwareConcurrency,
    encoders: encoders.map(({ name, note }) => ({ name, note })),
    rows,
  };
}

/**
 * @param {string} id
 * @param {() => Promise<Encoder>} load
 */
async function loaded(id, load) {
  await say(`Loading ${id}`);
  const started = performance.now();
  const encoder = await load();
  await encoder.embed(makeTexts(SLOWLY.lengths[0], 1, 0));
  add(`load_${id}_s`, `${encoder.name}: load and first vector`, secondsSince(started), "s",
    encoder.note);
  return encoder;
}

/**
 * @param {URL} manifest
 * @returns {Promise<Encoder>}
 */
async function loadOctavo(manifest) {
  const client = new Octavo();
  return {
    name: "Octavo",
    note: manifest.pathname,
    async embed(input) {
      const options = /** @type {any} */ ({ model: manifest.href, input, device });
      const { data } = await client.embeddings.create(options);
      return data.map(({ embedding }) => embedding);
    },
  };
}

/** What the plans take, found when the site was made. @param {URL} manifest */
async function addFacts(manifest) {
  const response = await fetch(new URL("facts.json", manifest));
  if (!response.ok) return;
  for (const { id, label, value, unit } of await response.json()) add(id, label, value, unit);
}

/**
 * All encoders in turns, so that what else the machine does meets them alike.
 *
 * @param {Encoder[]} encoders
 * @param {number} length tokens of a sentence
 * @param {number} batch sentences of a request
 */
async function measure(encoders, length, batch) {
  const place = `${batch} of ${length} tokens`;
  await say(`Sentences, ${place}`);
  const first = makeTexts(length, batch, 0);
  /** @type {ArrayLike<number>[][]} */
  const vectors = [];
  for (const { embed } of encoders) vectors.push(await embed(first));
  /** @type {number[][]} */
  const rates = encoders.map(() => []);
  const end = performance.now() + seconds * 1000 * encoders.length;
  for (let seed = 1; seed <= MIN_RUNS || performance.now() < end; seed++) {
    const texts = makeTexts(length, batch, seed);
    for (const [i, { embed }] of encoders.entries()) {
      const started = performance.now();
      await embed(texts);
      rates[i].push(batch / secondsSince(started));
    }
  }
  const id = `${length}x${batch}`;
  for (const [i, { name }] of encoders.entries()) {
    const who = i ? "peer" : "octavo";
    add(`${who}_${id}_per_s`, `${name}: ${place}`, median(rates[i]), "sentences/s",
      spread(rates[i]));
  }
  if (encoders.length < 2) return;
  const [own, other] = rates.map(median);
  add(`octavo_to_peer_${id}`, "  Octavo to it", own / other, "times");
  const cosines = vectors[0].map((vector, i) => dot(vector, vectors[1][i]));
  add(`cosine_${id}`, "  lowest cosine of both vectors", Math.min(...cosines), "");
}

/**
 * @param {number} length tokens
 * @param {number} batch
 * @param {number} seed
 */
function makeTexts(length, batch, seed) {
  const random = seeded(seed + 1);
  const word = () => COMMON[random(COMMON.length)];
  const sentence = () => Array.from({ length: length - AROUND }, word).join(" ");
  return Array.from({ length: batch }, sentence);
}

/**
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** @param {string} name of an address parameter */
function numbers(name) {
  const found = (address.get(name) ?? "").split(",").map(Number).filter((n) => n > 0);
  return found.length ? found : null;
}

/** The device that is measured, as bench.mjs tells it. */
async function describe() {
  if (device === "cpu") return { kind: "cpu", name: "CPU", software: false };
  const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) return { kind: "webgpu", name: "none", software: false }; // the load says so
  const { vendor, architecture, description } = adapter.info;
  const name = [vendor, architecture, description].filter(Boolean).join(" ");
  return { kind: "webgpu", name, software: /swiftshader|llvmpipe/i.test(name) };
}
