/** The load progress: a bar, what is being done, and how far it is. */

import { byId } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./client.mjs").Progress} Progress
 * @typedef {Progress["stage"]} Stage
 */

/** Stages overlap: the first one here that has not ended is shown. @type {Stage[]} */
const ORDER = ["download", "runtime", "device", "tune", "weights", "compile", "warmup"];

export class ProgressView {
  #area;
  #bar = /** @type {HTMLProgressElement} */ (byId("progress-bar"));
  /** @type {Map<Stage, Progress>} */
  #stages = new Map();

  /** @param {HTMLElement} area */
  constructor(area) {
    this.#area = area;
  }

  start() {
    this.#stages.clear();
    byId("progress-stage").textContent = t("stage_start");
    byId("progress-numbers").textContent = "";
    this.#bar.value = 0;
    this.#area.hidden = false;
  }

  /** @param {Progress} progress */
  show(progress) {
    this.#stages.set(progress.stage, progress);
    const stages = ORDER.flatMap((stage) => this.#stages.get(stage) ?? []);
    const { stage, loaded, total, unit } =
      stages.find((known) => known.loaded < known.total) ?? progress;
    const share = total > 0 ? loaded / total : 0;
    byId("progress-stage").textContent = t(`stage_${stage}`);
    byId("progress-numbers").textContent = t(`progress_${unit}`, {
      loaded: number(Math.round(loaded / 1e6)),
      total: number(Math.round(total / 1e6)),
      percent: number(share, { style: "percent" }),
    });
    this.#bar.value = share;
    Object.assign(this.#area.dataset, { stage, loaded: String(loaded), total: String(total) });
  }

  end() {
    this.#area.hidden = true;
  }
}
