/** Pictures of figures as SVG: their colours are the style sheet's, so they follow the theme. */

import { element } from "./dom.mjs";

/**
 * @typedef {object} Part of a whole
 * @property {string} tone the class that gives its colour
 * @property {string} label
 * @property {number} value
 * @property {string} text the value as it is shown
 */

const SVG = "http://www.w3.org/2000/svg";
const BAR = 1000; // length of a bar, in its own units
const MOST_CELLS = 8192; // of a map; more blocks than that share them
const MAP_HEIGHT = 150; // pixels that a map takes if its cells can be so small
const [SMALLEST, LARGEST] = [3, 14]; // pixels of a cell
/** Of several blocks in a cell, the first state here is shown. */
const STATES = ["s", "o", "c", "f"];

/**
 * A bar divided in proportion; `whole` is its length, all parts together if absent.
 *
 * @param {Part[]} parts
 * @param {number} [whole]
 */
export function bar(parts, whole = parts.reduce((sum, { value }) => sum + value, 0)) {
  const svg = picture(BAR, 1, "bar-picture");
  svg.setAttribute("preserveAspectRatio", "none");
  let x = 0;
  for (const { tone, value } of parts) {
    const width = whole > 0 ? (value / whole) * BAR : 0;
    svg.append(shape("rect", { x, y: 0, width, height: 1, class: tone }));
    x += width;
  }
  return svg;
}

/** What the colours mean. @param {Part[]} parts */
export function legend(parts) {
  const items = element("ul", "legend");
  for (const { tone, label, text } of parts) {
    const item = element("li");
    item.append(element("span", `swatch ${tone}`), element("span", "", label), element("b", "", text));
    items.append(item);
  }
  return items;
}

/**
 * A square for each block, in the order of their numbers.
 *
 * @param {string} map of KvStatus
 * @param {number} width pixels that there are
 * @param {Record<string, string>} tones by state
 */
export function blockMap(map, width, tones) {
  const { cells } = cellsOf(map);
  const size = Math.floor(Math.sqrt((width * MAP_HEIGHT) / Math.max(1, cells.length)));
  const cell = Math.min(LARGEST, Math.max(SMALLEST, size));
  const columns = Math.max(1, Math.floor(width / cell));
  const rows = Math.ceil(cells.length / columns);
  const svg = picture(columns * cell, rows * cell, "map-picture");
  svg.setAttribute("width", String(columns * cell));
  svg.setAttribute("height", String(rows * cell));
  const side = cell - 1;
  for (const state of STATES) {
    const squares = cells.flatMap((it, i) => {
      if (it !== state) return [];
      return `M${(i % columns) * cell} ${Math.floor(i / columns) * cell}h${side}v${side}h-${side}z`;
    });
    svg.append(shape("path", { d: squares.join(""), class: tones[state] }));
  }
  return svg;
}

/**
 * The states of a map's cells, each of which stands for `each` blocks.
 *
 * @param {string} map of KvStatus
 */
export function cellsOf(map) {
  const runs = [...map.matchAll(/([a-z])(\d+)/g)];
  const blocks = runs.flatMap(([, state, count]) => Array(Number(count)).fill(state));
  const each = Math.max(1, Math.ceil(blocks.length / MOST_CELLS));
  const cells = Array.from({ length: Math.ceil(blocks.length / each) }, (_, i) => {
    const covered = blocks.slice(i * each, (i + 1) * each);
    return STATES.find((state) => covered.includes(state)) ?? "f";
  });
  return { cells, each };
}

/**
 * @param {number} width
 * @param {number} height
 * @param {string} className
 */
function picture(width, height, className) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, class: className, "aria-hidden": "true" });
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 */
function shape(tag, attributes) {
  const created = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, String(value));
  return created;
}
