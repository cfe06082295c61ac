/**
 * The performance panel: speed, time to the first token, KV cache, memory and kernels as pictures,
 * each with a text that says the same. In a wide window it stands beside the conversation, in a
 * narrow one it is a dialog. It asks for news while it is open only.
 */

import { styled } from "./dialog.mjs";
import { button, element } from "./dom.mjs";
import { Figure, localized } from "./figure.mjs";
import { number, t } from "./locale.mjs";
import {
  BLOCK_TONES, blockParts, firstParts, kernelTable, megabytes, memoryParts, milliseconds, planText, threeDigits,
} from "./performance_figures.mjs";
import { reportOf } from "./performance_report.mjs";
import { bar, blockMap, cellsOf } from "./pictures.mjs";
import { SpeedChart } from "./speed_chart.mjs";

/**
 * @typedef {import("./client.mjs").Status} Status
 * @typedef {import("./client.mjs").Measurement} Measurement
 *
 * @typedef {object} Sources
 * @property {import("./client.mjs").Octavo} octavo
 * @property {import("./records.mjs").Records} records
 * @property {import("./settings.mjs").Settings} settings
 * @property {() => Promise<void>} inspect opens what shows a step of the model
 */

const STYLES = ["vendor/uPlot.css", "performance.css"];
const BUSY_MS = 250; // between two looks while something goes on
const IDLE_MS = 1000;
const MOST_BARS = 6; // answers whose first token is shown
const MEASURED_TOKENS = 32;
const MEASURED_STEPS = 8;
const COPIED_MS = 1500;

export class PerformancePanel {
  #sources;
  #dialog = document.createElement("dialog");
  #isWide = matchMedia("(width >= 80rem)");
  #none = localized("p", "hint", "perf_none");
  #speed = new Figure("speed", "perf_speed");
  #first = new Figure("first-token", "perf_first");
  #blocks = new Figure("kv-map", "perf_kv");
  #memory = new Figure("memory", "perf_memory");
  #kernels = new Figure("kernels", "perf_kernels", "group");
  #measure = button("quiet", "perf_measure", () => this.#measureKernels());
  #inspect = button("quiet", "inspect", () => this.#sources.inspect());
  #copy = button("quiet", "perf_copy", () => this.#copyReport());
  #report = document.createElement("textarea");
  /** @type {SpeedChart | undefined} */
  #chart;
  /** @type {Status} */
  #status = { state: "loading" };
  /** @type {Measurement | null} */
  #measured = null;
  #problem = "";
  /** Counts openings and news: a newer one ends the loop of the one before. */
  #round = 0;
  #looked = 0;

  /** @param {Sources} sources */
  constructor(sources) {
    this.#sources = sources;
    this.#build();
    const repaint = () => this.#dialog.open && this.#repaint();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    new MutationObserver(repaint).observe(document.documentElement, { attributeFilter: ["data-theme", "lang"] });
    new ResizeObserver(() => this.#dialog.open && this.#show()).observe(this.#blocks.picture);
    this.#isWide.addEventListener("change", () => {
      if (!this.#dialog.open) return;
      this.#dialog.close();
      this.#open();
    });
    sources.records.addEventListener("change", () => this.#dialog.open && this.#follow());
  }

  async toggle() {
    if (this.#dialog.open) return this.#dialog.close();
    await Promise.all(STYLES.map(styled));
    this.#open();
  }

  #build() {
    const dialog = this.#dialog;
    dialog.className = "models performance";
    dialog.dataset.testid = "performance-panel";
    const title = localized("h2", "", "performance");
    title.id = "performance-title";
    dialog.setAttribute("aria-labelledby", title.id);
    const close = button("quiet", "close", () => dialog.close());
    close.dataset.testid = "performance-close";
    const head = element("header", "models-head");
    head.append(title, close);
    const actions = element("p", "row");
    actions.append(this.#measure);
    this.#kernels.section.append(actions, localized("p", "hint", "perf_measure_hint"));
    const foot = element("section", "figure");
    this.#report.readOnly = true;
    this.#report.rows = 6;
    this.#report.hidden = true;
    this.#report.dataset.testid = "performance-report";
    this.#report.dataset.i18nLabel = "perf_report";
    this.#report.setAttribute("aria-label", t("perf_report"));
    foot.append(this.#copy, localized("p", "hint", "perf_copy_hint"), this.#report);
    const inside = element("section", "figure");
    inside.append(this.#inspect, localized("p", "hint", "inspect_hint"));
    close.dataset.i18n = "close";
    this.#measure.dataset.i18n = "perf_measure";
    this.#copy.dataset.i18n = "perf_copy";
    this.#inspect.dataset.i18n = "inspect";
    const figures = [this.#speed, this.#first, this.#blocks, this.#memory, this.#kernels];
    dialog.append(head, this.#none, ...figures.map(({ section }) => section), inside, foot);
    dialog.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it closes the panel, and ends no answer
      dialog.close();
    });
    document.body.append(dialog);
  }

  #open() {
    if (this.#isWide.matches) this.#dialog.show();
    else this.#dialog.showModal();
    this.#chart ??= new SpeedChart(this.#speed.picture);
    this.#repaint();
    this.#follow();
  }

  /** Asks for news again and again, until the panel is closed or the engine does not answer. */
  async #follow() {
    const round = ++this.#round;
    let wait = this.#looked + BUSY_MS - performance.now();
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (round !== this.#round || !this.#dialog.open) return;
      this.#looked = performance.now();
      if (!document.hidden) {
        const status = await this.#sources.octavo.status().catch(() => null);
        if (round !== this.#round) return;
        this.#learn(status ?? { state: "empty" });
        if (!status) return; // the next load says so
      }
      wait = ["generating", "loading"].includes(this.#status.state) ? BUSY_MS : IDLE_MS;
    }
  }

  /** @param {Status} status */
  #learn(status) {
    const [before, now] = [this.#status, status].map(({ model, device }) => JSON.stringify([model, device]));
    if (before !== now) {
      this.#measured = null;
      this.#problem = "";
    }
    this.#status = status;
    this.#show();
  }

  /** Shows everything anew: colours, language or size are others. */
  #repaint() {
    for (const it of [this.#speed, this.#first, this.#blocks, this.#memory, this.#kernels]) it.forget();
    this.#show();
    this.#chart?.redraw();
  }

  #show() {
    const { state, kv, memory = {}, model } = this.#status;
    this.#none.hidden = Boolean(model) || state === "loading";
    this.#showSpeed();
    this.#showFirst();
    this.#blocks.section.hidden = !kv;
    if (kv) this.#showBlocks(kv);
    this.#memory.section.hidden = !Object.keys(memory).length;
    this.#showMemory(memory);
    this.#kernels.section.hidden = !kv;
    this.#showKernels();
  }

  #showSpeed() {
    const { records } = this.#sources;
    this.#chart?.show(records);
    const speeds = records.speeds.filter((speed) => speed !== null);
    const last = records.answers.at(-1);
    this.#speed.summarize(speeds.length === 0 ? t("perf_no_answers") : t("perf_speed_text", {
      last: threeDigits(last?.timing.decode_tokens_per_s ?? speeds.at(-1) ?? 0),
      low: threeDigits(Math.min(...speeds)),
      high: threeDigits(Math.max(...speeds)),
    }));
  }

  #showFirst() {
    const answers = this.#sources.records.answers.slice(-MOST_BARS);
    const longest = Math.max(...answers.map(({ timing }) => timing.ttft_ms));
    this.#first.show(answers, () => answers.map(({ timing }) => bar(firstParts(timing), longest)), () => {
      const last = answers.at(-1);
      if (!last) return { summary: t("perf_no_answers") };
      const summary = t("perf_first_text", { time: milliseconds(last.timing.ttft_ms) });
      return { parts: firstParts(last.timing), summary };
    });
  }

  /** @param {NonNullable<Status["kv"]>} kv */
  #showBlocks(kv) {
    const width = this.#blocks.picture.clientWidth;
    this.#blocks.show([kv.map, kv.tokens, kv.budget_blocks, width], () => [blockMap(kv.map, width, BLOCK_TONES)], () => {
      const { each } = cellsOf(kv.map);
      const blocks = t("perf_kv_text", {
        blocks: number(kv.num_blocks),
        size: number(kv.block_size),
        precision: t(`kv_${kv.precision}`),
        budget: number(kv.budget_blocks),
        tokens: number(kv.tokens),
      });
      const cells = each > 1 ? ` ${t("perf_kv_each", { each: number(each) })}` : "";
      return { parts: blockParts(kv), summary: blocks + cells };
    });
  }

  /** @param {Record<string, number>} memory */
  #showMemory(memory) {
    const parts = memoryParts(memory);
    const total = megabytes(parts.reduce((sum, { value }) => sum + value, 0));
    this.#memory.show(parts, () => [bar(parts)], () => ({ parts, summary: t("perf_memory_text", { total }) }));
  }

  #showKernels() {
    const measured = this.#measured;
    this.#kernels.show([measured, this.#problem], () => Object.entries(measured?.kernels ?? {}).flatMap(kernelTable), () => {
      if (this.#problem) return { summary: this.#problem };
      if (!measured) return { summary: t("perf_not_measured") };
      const plans = Object.entries(measured.kernels).filter(([, rows]) => rows.length);
      const texts = plans.map(([plan, rows]) => planText(plan, rows));
      return { summary: texts.join(" ") || t("perf_no_timestamps") };
    });
  }

  async #measureKernels() {
    this.#measure.disabled = true;
    this.#problem = "";
    try {
      const context = this.#status.model?.context ?? 0;
      const tokens = Math.max(1, Math.min(MEASURED_TOKENS, Math.floor(context / 4)));
      this.#measured = await this.#sources.octavo.measure({ prefill: tokens, context: tokens, steps: MEASURED_STEPS });
    } catch (error) {
      const { code = "internal", message } = /** @type {import("./client.mjs").OctavoError} */ (error);
      this.#measured = null;
      this.#problem = message;
      this.#sources.records.fail(code);
    }
    this.#measure.disabled = false;
    this.#show();
  }

  async #copyReport() {
    const status = await this.#sources.octavo.status().catch(() => this.#status);
    const { records, settings } = this.#sources;
    this.#report.value = reportOf({ status, records, settings, measured: this.#measured });
    this.#report.hidden = false;
    try {
      await navigator.clipboard.writeText(this.#report.value);
      this.#copy.textContent = t("copied");
      setTimeout(() => (this.#copy.textContent = t("perf_copy")), COPIED_MS);
    } catch {
      this.#report.select(); // to be copied by hand: the browser does not let the page do it
    }
  }
}

