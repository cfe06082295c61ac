/// <reference path="./vendor.d.ts" />
/**
 * Markdown that grows, rendered piece by piece: how much is done again for new text does not depend
 * on how much there is already, nor on how it is built.
 *
 * A *unit* is what is rendered at once: a block, or of a list an item, of a table its head or a row.
 * Of the units, all but the last two are settled: nothing that comes later changes them, and their
 * text is dropped. Only the last two are read and rendered again. Code is not read at all: its lines
 * are appended as they come. A unit that is longer than the window is cut: a paragraph goes on in
 * pieces, an item of a list and a quotation have a flow of their own. Cuts depend on the text alone,
 * so that an answer looks the same however it came.
 */

import { CodeView } from "./code.mjs";
import { CodeLines, QuoteLines, ItemLines } from "./lines.mjs";
import { blocksOf, codesIn, fragmentOf } from "./markup.mjs";

/**
 * @typedef {import("./vendor/marked.esm.js").Token} Token
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
 *
 * @typedef {{lines: CodeLines | QuoteLines | ItemLines, to: CodeView | Flow, then: Continued | null}} Inside
 */

const LONGEST = 1000; // characters of a unit that is not cut
const WINDOW = 2 * LONGEST; // characters that are read at once
const OPEN = 2; // units at the end that later text can change
const JOINER = "\u2060"; // makes a paragraph of the rest of one, whatever it begins with

export class Flow {
  #element;
  /** What is not settled yet. */
  #tail = "";
  /** @type {Unit[]} */
  #open = [];
  /** @type {Continued | null} */
  #continued = null;
  /** Where lines go without being read as markdown here. @type {Inside | null} */
  #inside = null;

  /** @param {Element} element */
  constructor(element) {
    this.#element = element;
  }

  /** @param {string} text */
  append(text) {
    this.#tail += text;
  }

  /** Brings the element up to date. */
  render() {
    while (this.#inside ? this.#pass(false) : this.#step());
    if (this.#inside?.to instanceof Flow) this.#inside.to.render();
  }

  /** The same, as things are if no more comes. It may come all the same. */
  finish() {
    this.render();
    this.#inside && this.#pass(true);
    this.#inside?.to.finish();
    for (const { codes } of this.#open) codes?.forEach((code) => code.finish());
  }

  /**
   * Hands lines on to what they are part of; true if it has ended.
   *
   * @param {boolean} isLast
   */
  #pass(isLast) {
    const { lines, to, then } = /** @type {Inside} */ (this.#inside);
    const { text, rest, ended } = lines.take(this.#tail, isLast);
    this.#tail = rest;
    if (text) to.append(text);
    if (!ended) return false;
    to.finish();
    this.#inside = null;
    this.#continued = then;
    return true;
  }

  /** Reads and shows one window; true if there is more to do. */
  #step() {
    if (!this.#continued) this.#tail = this.#tail.replace(/^(?:[ \t]*\n)+/, "");
    const window = this.#tail.slice(0, WINDOW);
    const units = this.#read(window);
    const fence = units.findIndex(isFence);
    if (fence >= 0) return this.#enterCode(units, fence);
    const isFull = window.length === WINDOW;
    if (!isFull && units.length <= OPEN) {
      this.#show(units);
      return false;
    }
    const last = units.at(-1);
    const settled = units.length - OPEN;
    if (!units.length) this.#tail = this.#tail.slice(WINDOW); // nothing but spaces
    else if (settled > 0) this.#settle(units, settled);
    else if (units.length === OPEN && last && last.length >= LONGEST) this.#settle(units, 1);
    else this.#cut(units[0]);
    return true;
  }

  /**
   * @param {string} text
   * @returns {Unit[]}
   */
  #read(text) {
    const continued = this.#continued;
    if (continued) {
      const blocks = blocksOf(continued.prefix + text);
      if (goesOn(continued, blocks[0])) return unitsOf(blocks, continued);
    }
    return unitsOf(blocksOf(text), null); // a list may still go on: its next item has just begun
  }

  /**
   * Shows units; those that were there already stay as they are.
   *
   * @param {Unit[]} units
   */
  #show(units) {
    const open = this.#open;
    let same = 0;
    while (same < units.length && same < open.length && areAlike(units[same], open[same])) {
      const { node, holder, container, codes } = open[same];
      Object.assign(units[same++], { node, holder, container, codes });
    }
    for (const { node, holder } of open.slice(same).reverse()) (holder ?? node)?.remove();
    for (let from = same, to; from < units.length; from = to) {
      const { token } = units[from];
      to = units.findIndex((unit, i) => i > from && unit.token !== token);
      if (to < 0) to = units.length;
      this.#make(units.slice(from, to), units[from - 1]?.container ?? this.#continued?.container);
    }
    this.#open = units;
  }

  /**
   * Makes the elements of units of one block.
   *
   * @param {Unit[]} units
   * @param {Element} [before] the container of the unit before them
   */
  #make(units, before) {
    const [first] = units;
    const part = partOf(units);
    const fragment = fragmentOf([part]);
    const codes = codeViews(fragment, part);
    const made = fragment.firstElementChild;
    const nodes = made ? nodesOf(first.kind, made) : [];
    const container = (first.follows && before) || made;
    if (first.follows && before) {
      placeOf(first.kind, before).append(...nodes);
    } else {
      first.holder = this.#hold(...fragment.childNodes);
      if (first.kind === "block") nodes.push(first.holder);
    }
    const heads = first.kind === "head" ? 1 : 0;
    units.forEach((unit, i) => {
      unit.container = container ?? undefined;
      unit.node = unit.kind === "head" ? undefined : nodes[i - heads];
      unit.codes = codes.filter(({ element }) => unit.node?.contains(element));
    });
  }

  /**
   * The first ones do not change any more.
   *
   * @param {Unit[]} units
   * @param {number} count
   */
  #settle(units, count) {
    this.#show(units);
    this.#open = units.slice(count);
    let length = 0;
    for (const unit of units.slice(0, count)) {
      length += unit.length;
      unit.codes?.forEach((code) => code.finish());
    }
    this.#tail = this.#tail.slice(length);
    const next = units[count];
    this.#continued = next?.follows ? continuedOf(units[count - 1]) : null;
  }

  /**
   * @param {Unit[]} units
   * @param {number} i which of them is code
   */
  #enterCode(units, i) {
    const { raw } = units[i];
    this.#settle(units.slice(0, i), i);
    this.#show([]); // it is shown in another way
    const end = raw.indexOf("\n") + 1;
    const lines = new CodeLines(raw.slice(0, end));
    const code = new CodeView(lines.language);
    this.#hold(code.element);
    this.#tail = this.#tail.slice(end);
    this.#continued = null;
    this.#inside = { lines, to: code, then: null };
    return true;
  }

  /**
   * Settles the beginning of a unit that is longer than the window.
   *
   * @param {Unit} unit
   */
  #cut(unit) {
    if (unit.kind === "item") return this.#nest(unit, new ItemLines(unit.raw));
    if (unit.token.type === "blockquote") return this.#nest(unit, new QuoteLines());
    const at = cutOf(unit);
    const units = this.#read(this.#tail.slice(0, at));
    this.#settle(units, units.length);
    const last = units.at(-1);
    if (!last || last.token.type === "code") return;
    const isText = last.token.type === "paragraph" && last.container;
    const paragraph = isText ? /** @type {Element} */ (last.container) : this.#paragraph();
    this.#continued = { kind: "piece", container: paragraph, prefix: JOINER, mark: "", loose: false };
  }

  #paragraph() {
    const paragraph = document.createElement("p");
    this.#hold(paragraph);
    return paragraph;
  }

  /**
   * Shows a block behind the others.
   *
   * @param {Node[]} nodes
   */
  #hold(...nodes) {
    const holder = document.createElement("div");
    holder.dir = "auto";
    holder.append(...nodes);
    this.#element.append(holder);
    return holder;
  }

  /**
   * Lets a flow of its own show what is in a unit.
   *
   * @param {Unit} unit
   * @param {ItemLines | QuoteLines} lines
   */
  #nest(unit, lines) {
    const shell = { ...unit, raw: "", token: emptied(unit.token) };
    this.#show([shell]);
    this.#open = [];
    const target = unit.kind === "item" ? shell.node : shell.container;
    const then = unit.kind === "item" ? continuedOf({ ...unit, container: shell.container }) : null;
    this.#continued = null;
    this.#inside = { lines, to: new Flow(/** @type {Element} */ (target)), then };
  }
}

/**
 * @param {Token[]} blocks
 * @param {Continued | null} continued the first block, perhaps
 * @returns {Unit[]}
 */
function unitsOf(blocks, continued) {
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
 * @param {Continued} continued
 * @param {Token | undefined} token
 */
function goesOn({ kind, mark }, token) {
  if (kind === "item") return token?.type === "list" && markOf(token.raw) === mark;
  return token?.type === (kind === "piece" ? "paragraph" : "table");
}

/**
 * @param {Unit} unit the last one that is settled
 * @returns {Continued}
 */
function continuedOf({ kind, token, loose, container }) {
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
 * @param {Unit} a
 * @param {Unit} b
 */
function areAlike(a, b) {
  return a.kind === b.kind && a.raw === b.raw && a.follows === b.follows && a.loose === b.loose;
}

/** Fenced code whose first line is whole. @param {Unit} unit */
function isFence({ kind, token, raw }) {
  return kind === "block" && token.type === "code" && /^ {0,3}(?:```|~~~)[^\n]*\n/.test(raw);
}

/**
 * The block with these units of it only.
 *
 * @param {Unit[]} units
 * @returns {Token}
 */
function partOf(units) {
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
function emptied(token) {
  const item = { type: "list_item", raw: "", tokens: [], task: false };
  return token.type === "list" ? { ...token, items: [item] } : { ...token, tokens: [] };
}

/**
 * What stands for the units in an element that was made of them.
 *
 * @param {Unit["kind"]} kind
 * @param {Element} made
 * @returns {Element[]}
 */
function nodesOf(kind, made) {
  if (kind === "item") return [...made.children];
  if (kind === "head" || kind === "row") return [...made.querySelectorAll("tbody > tr")];
  if (kind === "block") return [];
  const piece = document.createElement("span");
  piece.append(...made.childNodes);
  const text = piece.firstChild;
  if (text?.nodeValue) text.nodeValue = text.nodeValue.replace(JOINER, "");
  return [piece];
}

/**
 * @param {Unit["kind"]} kind
 * @param {Element} container
 */
function placeOf(kind, container) {
  if (!(container instanceof HTMLTableElement) || kind !== "row") return container;
  return container.tBodies[0] ?? container.createTBody();
}

/**
 * Puts views in the place of code.
 *
 * @param {DocumentFragment} fragment
 * @param {Token} token
 */
function codeViews(fragment, token) {
  const tokens = codesIn([token]);
  const elements = [...fragment.querySelectorAll("pre")];
  return elements.map((pre, i) => {
    const lang = tokens.length === elements.length ? tokens[i].lang : "";
    const code = new CodeView(lang?.trim().split(/\s/, 1)[0] ?? "");
    code.append(pre.textContent ?? "");
    pre.replaceWith(code.element);
    return code;
  });
}

/**
 * Where a long unit is cut: not within emphasis, links or code, if that can be; before a space, if
 * there is one near.
 *
 * @param {Unit} unit
 * @returns {number} of characters from its beginning
 */
function cutOf({ kind, raw, token }) {
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
