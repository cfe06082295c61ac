/// <reference path="./vendor.d.ts" />
/** Markdown in units, each of which flow.mjs renders at once: how blocks are divided, and cut. */

/**
 * @typedef {import("./vendor/marked.esm.js").Token} Token
 * @typedef {import("./code.mjs").CodeView} CodeView
 *
 * @typedef {object} Unit
 * @property {"block" | "item" | "head" | "row" | "piece"} kind
 * @property {string} raw units of a kind with equal source look the same
 * @property {number} length of the source and the blank lines after it
 * @property {Token} token the block that it belongs to
 * @property {number} index of an item or a row of that
 * @property {boolean} follows whether its container was there before
 * @property {boolean} loose whether an item's text has paragraphs
 * @property {Element} [node] what shows it, if it is more than that of the block
 * @property {Element} [holder] of the block, if the block begins with it
 * @property {Element} [container] of its kind of units: list, table, or paragraph
 * @property {CodeView[]} [codes]
 *
 * @typedef {object} Continued a block whose beginning is settled
 * @property {Unit["kind"]} kind
 * @property {Element} container
 * @property {string} prefix what its rest needs before it to be read as what it is
 * @property {string} mark of a list: what its items begin with, but for the number
 * @property {boolean} loose
 */

export const LONGEST = 1000; // characters of a unit that is not cut
export const JOINER = "\u2060"; // makes a paragraph of the rest of one, whatever it begins with

/**
 * The units of blocks, each with the blank lines after it.
 *
 * @param {Token[]} blocks
 * @param {Continued | null} continued the first block, perhaps
 * @returns {Unit[]}
 */
export function unitsOf(blocks, continued) {
  /** @type {Unit[]} */
  const units = [];
  let before = 0; // blank lines at the beginning
  for (const token of blocks) {
    const last = units.at(-1);
    if (token.type !== "space") units.push(...unitsOfBlock(token, token === blocks[0] ? continued : null));
    else if (last) last.length += token.raw.length;
    else before += token.raw.length;
  }
  if (units.length) units[0].length += before;
  return units;
}

/**
 * @param {Token} token
 * @param {Continued | null} continued
 * @returns {Unit[]}
 */
function unitsOfBlock(token, continued) {
  const { type, raw } = token;
  const unit = (/** @type {Unit["kind"]} */ kind, /** @type {string} */ source, index = 0) =>
    ({ kind, raw: source, length: source.length, token, index, follows: index > 0, loose: false });
  if (type === "list" && token.items) {
    const items = token.items.map((item, i) => unit("item", item.raw, i));
    const length = items.reduce((sum, item) => sum + item.length, 0);
    items[items.length - 1].length += raw.length - length; // spaces at the end
    items[0].follows = Boolean(continued);
    items.forEach((item, i) => {
      const before = i ? items[i - 1].loose : Boolean(continued?.loose);
      item.loose = /\n[ \t]*\n/.test(item.raw) || (i === items.length - 1 && before);
    });
    return items;
  }
  if (type === "table" && token.rows) {
    const lines = raw.replace(/\n$/, "").split("\n");
    if (lines.length === token.rows.length + 2) {
      const rows = lines.slice(2).map((line, i) => unit("row", `${line}\n`, i + 1));
      if (rows.length && !raw.endsWith("\n")) rows[rows.length - 1].length--;
      if (continued) return rows;
      const head = unit("head", `${lines[0]}\n${lines[1]}\n`);
      if (!rows.length && !raw.endsWith("\n")) head.length--;
      return [head, ...rows];
    }
  }
  if (!continued) return [unit("block", raw)];
  return [{ ...unit("piece", raw), length: raw.length - JOINER.length, follows: true }];
}

/**
 * Whether a block is the rest of the one whose beginning is settled.
 *
 * @param {Continued} continued
 * @param {Token | undefined} token
 */
export function goesOn({ kind, mark }, token) {
  if (kind === "item") return token?.type === "list" && markOf(token.raw) === mark;
  return token?.type === (kind === "piece" ? "paragraph" : "table");
}

/**
 * What must be known of a block to read its rest.
 *
 * @param {Unit} unit the last one that is settled
 * @returns {Continued}
 */
export function continuedOf({ kind, token, loose, container }) {
  const isTable = kind === "head" || kind === "row";
  const prefix = isTable ? `${token.raw.split("\n", 2).join("\n")}\n` : "";
  const mark = kind === "item" ? markOf(token.raw) : "";
  return { kind, container: /** @type {Element} */ (container), prefix, mark, loose };
}

/** @param {string} raw of a list */
function markOf(raw) {
  return /^\s*\d*(.)/.exec(raw)?.[1] ?? "";
}

/**
 * Whether what shows one shows the other.
 *
 * @param {Unit} a
 * @param {Unit} b
 */
export function areAlike(a, b) {
  return a.kind === b.kind && a.raw === b.raw && a.follows === b.follows && a.loose === b.loose;
}

/** Fenced code whose first line is whole. @param {Unit} unit */
export function isFence({ kind, token, raw }) {
  return kind === "block" && token.type === "code" && /^ {0,3}(?:```|~~~)[^\n]*\n/.test(raw);
}

/**
 * The block with these units of it only.
 *
 * @param {Unit[]} units
 * @returns {Token}
 */
export function partOf(units) {
  const { kind, token } = units[0];
  if (kind === "item") {
    const items = units.map(({ index, loose }) => shaped(/** @type {Token[]} */ (token.items)[index], loose));
    return { ...token, items };
  }
  if (kind !== "head" && kind !== "row") return token;
  const rows = units.filter((unit) => unit.kind === "row").map(({ index }) => token.rows?.[index - 1]);
  return { ...token, rows };
}

/**
 * An item whose text is as loose as it is itself: the items after it have no say.
 *
 * @param {Token} item
 * @param {boolean} loose
 * @returns {Token}
 */
function shaped(item, loose) {
  const tokens = item.tokens?.map((token) => {
    const isText = token.type === "text" || token.type === "paragraph";
    return isText ? { ...token, type: loose ? "paragraph" : "text" } : token;
  });
  return { ...item, loose, tokens };
}

/**
 * @param {Token} token
 * @returns {Token} without anything in it
 */
export function emptied(token) {
  const item = { type: "list_item", raw: "", tokens: [], task: false };
  return token.type === "list" ? { ...token, items: [item] } : { ...token, tokens: [] };
}

/**
 * Where a long unit is cut: not within emphasis, links or code, if that can be; before a space, if
 * there is one near.
 *
 * @param {Unit} unit
 * @returns {number} of characters from its beginning
 */
export function cutOf({ kind, raw, token }) {
  const line = raw.lastIndexOf("\n", LONGEST) + 1;
  if (token.type === "code" && line) return line;
  if (token.type !== "paragraph") return whole(raw, LONGEST);
  const prefix = kind === "piece" ? JOINER.length : 0;
  let [at, best] = [-prefix, 0];
  for (const { type, raw: source } of token.tokens ?? []) {
    if (at > 0) best = at;
    const end = at + source.length;
    if (end > LONGEST) {
      if (type !== "text") break;
      const space = raw.slice(prefix).lastIndexOf(" ", LONGEST);
      best = space > Math.max(at, LONGEST - 200) ? space : LONGEST;
      break;
    }
    at = end;
  }
  return whole(raw.slice(prefix), best || LONGEST);
}

/**
 * @param {string} text
 * @param {number} at
 * @returns {number} the same, or one less where that would part a pair of surrogates
 */
function whole(text, at) {
  return /[\uDC00-\uDFFF]/.test(text[at] ?? "") ? at - 1 : at;
}
