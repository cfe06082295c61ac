/** What the visitor has set, kept in this browser; the page's address takes precedence. */

import { remember, remembered } from "./remembered.mjs";

/**
 * @typedef {"answer" | "load" | "page"} Group what a setting is for: the next answer, the next load
 *   of a model, or the page
 *
 * @typedef {object} Setting
 * @property {string} name
 * @property {Group} group
 * @property {number} [min]
 * @property {number} [max]
 * @property {boolean} [whole]
 * @property {number} [unit] what the visitor sees, times this, is the value
 * @property {number} [neutral] what holds if neither the visitor nor the model's file says another
 * @property {string[]} [choices] the first one is what holds if none is chosen
 * @property {string} [prefix] of the names of strings for choices
 * @property {number} [maxLength] of a text
 * @property {"url" | "password"} [kind] of a text, if it is a line; a password is not kept, and no
 *   address gives it
 *
 * @typedef {Record<string, string | number>} Values by the name of the setting
 */

const KEY = "octavo-settings";

/** In the order in which they are shown. @type {Setting[]} */
export const SETTINGS = [
  { name: "system", group: "answer", maxLength: 20_000 },
  { name: "temperature", group: "answer", min: 0, max: 2, neutral: 0 },
  { name: "top_p", group: "answer", min: 0.01, max: 1, neutral: 1 },
  { name: "top_k", group: "answer", min: 0, max: 1000, whole: true, neutral: 0 },
  { name: "min_p", group: "answer", min: 0, max: 1, neutral: 0 },
  { name: "repetition_penalty", group: "answer", min: 0.5, max: 2, neutral: 1 },
  { name: "presence_penalty", group: "answer", min: -2, max: 2, neutral: 0 },
  { name: "frequency_penalty", group: "answer", min: -2, max: 2, neutral: 0 },
  { name: "seed", group: "answer", min: 0, max: 2 ** 32 - 1, whole: true, neutral: 0 },
  { name: "max_tokens", group: "answer", min: 1, max: 131_072, whole: true },
  { name: "context_full", group: "answer", choices: ["stop", "slide"], prefix: "full" },
  { name: "device", group: "load", choices: ["auto", "gpu", "cpu", "remote"], prefix: "on" },
  { name: "remote", group: "load", maxLength: 2000, kind: "url" },
  { name: "remote_key", group: "load", maxLength: 2000, kind: "password" },
  { name: "context", group: "load", min: 16, max: 131_072, whole: true, neutral: 2048 },
  { name: "kv_bytes", group: "load", min: 1, max: 65_536, whole: true, unit: 1e6 },
  { name: "kv_precision", group: "load", choices: ["f16", "q8"], prefix: "kv" },
  { name: "theme", group: "page", choices: ["auto", "light", "dark"], prefix: "theme" },
  { name: "language", group: "page", choices: ["auto", "en", "zh"], prefix: "language" },
];

/** Others that only the address can give. */
const ADDRESS_TEXTS = ["model", "activations"];
const ADDRESS_NUMBERS = ["kv_tokens"];
/** What is for no load. */
const ENCODER = "encoder";

export class Settings {
  /** @type {Values} */
  #kept = read();
  /** What the address says; numbers that are none are left out. */
  address = fromAddress();
  /** What the model's file recommends. @type {Record<string, number>} */
  recommended = {};

  /** What the visitor has set. */
  get kept() {
    return this.#kept;
  }

  /** @param {Values} values all that differ from how things are by themselves */
  keep(values) {
    this.#kept = values;
    const written = Object.entries(values).filter(([name]) => !isSecret(name));
    remember("localStorage", KEY, JSON.stringify(Object.fromEntries(written)));
  }

  /** The encoder that the address names, for search in files; empty if it names none. */
  get encoder() {
    return String(this.address[ENCODER] ?? "");
  }

  /** Whether the address decides about a setting. @param {string} name */
  isFixed(name) {
    return name in this.address || (name === "kv_bytes" && "kv_tokens" in this.address);
  }

  /**
   * Everything that is set in a group.
   *
   * @param {Group} group
   * @returns {Values}
   */
  of(group) {
    const names = SETTINGS.filter((setting) => setting.group === group).map(({ name }) => name);
    return Object.fromEntries(names.flatMap((name) => {
      const value = this.isFixed(name) ? this.address[name] : this.#kept[name];
      return value === undefined ? [] : [[name, value]];
    }));
  }

  /** The options of a load that are set. */
  get load() {
    return withServer(this.of("load"));
  }

  /** The options of a load that the address gives. */
  get addressLoad() {
    const names = [...ADDRESS_TEXTS, ...ADDRESS_NUMBERS];
    const given = names.flatMap((name) => (name in this.address ? [[name, this.address[name]]] : []));
    const load = SETTINGS.filter(({ name, group }) => group === "load" && name in this.address);
    return withServer(Object.fromEntries([...given, ...load.map(({ name }) => [name, this.address[name]])]));
  }
}

/**
 * The options of a load, with address and key of a server as one.
 *
 * @param {Values} values
 * @returns {import("./client.mjs").LoadOptions}
 */
function withServer({ remote, remote_key, ...options }) {
  if (!remote) return options;
  const key = remote_key === undefined ? {} : { key: String(remote_key) };
  return { ...options, remote: { url: String(remote), ...key } };
}

/** @param {string} name */
function isSecret(name) {
  return SETTINGS.some((setting) => setting.name === name && setting.kind === "password");
}

/** @returns {Values} */
function fromAddress() {
  const address = new URLSearchParams(location.search);
  /** @type {Values} */
  const found = {};
  const texts = [...ADDRESS_TEXTS, ENCODER, ...namesOf(true)];
  for (const name of texts.filter((name) => !isSecret(name))) {
    const value = address.get(name);
    if (value) found[name] = value;
  }
  for (const name of [...ADDRESS_NUMBERS, ...namesOf(false)]) {
    const value = Number.parseFloat(address.get(name) ?? "");
    if (Number.isFinite(value)) found[name] = value;
  }
  return found;
}

/** @param {boolean} areTexts or numbers */
function namesOf(areTexts) {
  const found = SETTINGS.filter((setting) => areTexts === Boolean(setting.choices ?? setting.maxLength));
  return found.map(({ name }) => name);
}

/** What was kept, without what no setting may have. @returns {Values} */
function read() {
  let kept;
  try {
    kept = JSON.parse(remembered("localStorage", KEY) ?? "{}") ?? {};
  } catch {
    return {}; // it holds something else
  }
  const right = SETTINGS.filter((setting) => isRight(setting, kept[setting.name]));
  return Object.fromEntries(right.map(({ name }) => [name, kept[name]]));
}

/**
 * @param {Setting} setting
 * @param {unknown} value
 */
function isRight({ choices, maxLength, min = 0, max = 0, whole, unit = 1 }, value) {
  if (choices) return choices.includes(/** @type {string} */ (value));
  if (maxLength) return typeof value === "string" && value.length <= maxLength;
  if (typeof value !== "number" || (whole && !Number.isInteger(value))) return false;
  return value >= min * unit && value <= max * unit;
}
