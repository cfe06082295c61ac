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
import {
  JOINER, LONGEST, areAlike, continuedOf, cutOf, emptied, goesOn, isFence, partOf, unitsOf,
} from "./units.mjs";

/**
 * @typedef {import("./vendor/marked.esm.js").Token} Token
 * @typedef {import("./units.mjs").Unit} Unit
 * @typedef {import("./units.mjs").Continued} Continued
 *
 * @typedef {{lines: CodeLines | QuoteLines | ItemLines, to: CodeView | Flow, then: Continued | null}} Inside
 */

const WINDOW = 2 * LONGEST; // characters that are read at once
const OPEN = 2; // units at the end that later text can change

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
