/** The load progress: a bar, what is being done, and how far it is. */

import { byId } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./client.mjs").Progress | import("./search.mjs").PassageProgress} Progress
 * @typedef {Progress["stage"]} Stage
 */

const RATE_MS = 5000; // how long back the speed of a download is taken from
const SAID_STEPS = 10; // of a stage: what a screen reader hears of how far it is

/** Stages overlap: the first one here that has not ended is shown. @type {Stage[]} */
const ORDER = ["download", "runtime", "device", "tune", "weights", "compile", "warmup", "passages"];

export class ProgressView {
  #area;
  #bar = /** @type {HTMLProgressElement} */ (byId("progress-bar"));
  /** @type {Map<Stage, Progress>} */
  #stages = new Map();
  /** Of the download. @type {{at: number, loaded: number}[]} */
  #samples = [];
  #isPaused = false;
  #pause = byId("pause-load");

  /**
   * @param {HTMLElement} area
   * @param {import("./client.mjs").Octavo} octavo whose download is paused
   */
  constructor(area, octavo) {
    this.#area = area;
    this.#pause.addEventListener("click", async () => {
      const isPaused = !this.#isPaused;
      if (await (isPaused ? octavo.pause() : octavo.resume())) this.#showPaused(isPaused);
    });
  }

  /** @param {boolean} isPaused */
  #showPaused(isPaused) {
    this.#isPaused = isPaused;
    this.#samples = [];
    this.#pause.textContent = t(isPaused ? "resume" : "pause");
    byId("progress-speed").textContent = isPaused ? t("paused") : "";
  }

  start() {
    this.#stages.clear();
    this.#showPaused(false);
    this.#pause.hidden = true;
    byId("progress-stage").textContent = t("stage_start");
    byId("progress-numbers").textContent = "";
    this.#bar.value = 0;
    this.#bar.setAttribute("aria-valuetext", t("stage_start"));
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
    const said = number(Math.floor(share * SAID_STEPS) / SAID_STEPS, { style: "percent" });
    const valuetext = `${t(`stage_${stage}`)} ${said}`;
    if (this.#bar.getAttribute("aria-valuetext") !== valuetext) {
      this.#bar.setAttribute("aria-valuetext", valuetext);
    }
    this.#pause.hidden = stage !== "download" || loaded >= total;
    if (stage === "download") this.#showSpeed(loaded, total);
    else byId("progress-speed").textContent = "";
    Object.assign(this.#area.dataset, { stage, loaded: String(loaded), total: String(total) });
  }

  /**
   * @param {number} loaded
   * @param {number} total
   */
  #showSpeed(loaded, total) {
    if (this.#isPaused) return;
    const at = performance.now();
    this.#samples.push({ at, loaded });
    this.#samples = this.#samples.filter((sample) => at - sample.at < RATE_MS);
    const [first] = this.#samples;
    const bytes_per_ms = (loaded - first.loaded) / (at - first.at);
    if (!(bytes_per_ms > 0)) return;
    byId("progress-speed").textContent = t("progress_speed", {
      speed: number(bytes_per_ms / 1e3, { maximumSignificantDigits: 2 }),
      left: duration((total - loaded) / bytes_per_ms / 1e3),
    });
  }

  end() {
    this.#area.hidden = true;
  }
}

/** @param {number} seconds */
function duration(seconds) {
  if (seconds < 90) return t("seconds", { seconds: number(Math.ceil(seconds)) });
  return t("minutes", { minutes: number(Math.ceil(seconds / 60)) });
}
