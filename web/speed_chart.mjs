/** Tokens a second over time, on a canvas: uPlot draws it, in the colours of the page. */

import uPlot from "./vendor/uPlot.esm.js";
import { number } from "./locale.mjs";

const HEIGHT = 150; // pixels
const AXIS = 54; // pixels that its numbers take

export class SpeedChart {
  #area;
  #chart;
  /** What is drawn. @type {readonly number[] | null} */
  #seconds = null;

  /** @param {HTMLElement} area whose colours are those of text, grid (border) and line (outline) */
  constructor(area) {
    this.#area = area;
    const [text, grid, line] = [
      () => getComputedStyle(area).color,
      () => getComputedStyle(area).borderTopColor,
      () => getComputedStyle(area).outlineColor,
    ];
    const lines = { stroke: grid, width: 1 };
    const values = (/** @type {unknown} */ _, /** @type {number[]} */ splits) =>
      splits.map((split) => number(split, { notation: "compact" }));
    this.#chart = new uPlot({
      width: this.#width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, range: (_, low, high) => [low ?? 0, Math.max(high ?? 0, (low ?? 0) + 1)] },
        y: { range: (_, __, high) => [0, (high || 1) * 1.1] },
      },
      axes: [
        { stroke: text, grid: lines, ticks: lines, values, size: 32 },
        { stroke: text, grid: lines, ticks: lines, values, size: AXIS },
      ],
      series: [{}, { stroke: line, width: 2, points: { show: false } }],
    }, [[], []], area);
    new ResizeObserver(() => this.#fit()).observe(area);
  }

  /** Draws what is new. @param {import("./records.mjs").Records} records */
  show({ seconds, speeds }) {
    if (seconds === this.#seconds) return;
    this.#seconds = seconds;
    this.#chart.setData([seconds, speeds]);
  }

  /** Draws again, in other colours perhaps. */
  redraw() {
    this.#chart.redraw();
  }

  get #width() {
    return Math.max(120, this.#area.clientWidth);
  }

  #fit() {
    if (this.#area.clientWidth) this.#chart.setSize({ width: this.#width, height: HEIGHT });
  }
}
