/** The figures of the performance panel, in words and as the parts of pictures. */

import { element } from "./dom.mjs";
import { number, t } from "./locale.mjs";
import { bar } from "./pictures.mjs";

/**
 * @typedef {import("./pictures.mjs").Part} Part
 * @typedef {NonNullable<import("./client.mjs").Status["kv"]>} KvStatus
 * @typedef {[label: string, count: number, ms: number]} Kernel
 */

const MOST_ROWS = 8; // kernels of a plan; the others together are one more
/** Of blocks by their states. */
export const BLOCK_TONES = { o: "tone-a", s: "tone-b", c: "tone-c", f: "tone-e" };
/** Of memory by its purpose; others share the last. @type {Record<string, string>} */
const MEMORY_TONES = { weights: "tone-a", kv: "tone-b", activations: "tone-c", state: "tone-d" };

/**
 * @param {import("./client.mjs").Timing} timing
 * @returns {Part[]} all in one where a remote server tells no parts
 */
export function firstParts({ ttft_ms, queue_ms, prefill_ms, first_step_ms }) {
  const parts = queue_ms == null
    ? [{ tone: "tone-e", label: t("perf_whole"), value: ttft_ms }]
    : [
        { tone: "tone-e", label: t("perf_queue"), value: queue_ms },
        { tone: "tone-b", label: t("perf_prefill"), value: prefill_ms ?? 0 },
        { tone: "tone-a", label: t("perf_first_step"), value: first_step_ms ?? 0 },
      ];
  return parts.map((part) => ({ ...part, text: milliseconds(part.value) }));
}

/** @param {KvStatus} kv @returns {Part[]} */
export function blockParts({ used_blocks, shared_blocks, cached_blocks, free_blocks }) {
  const parts = [
    { tone: BLOCK_TONES.o, label: t("perf_owned"), value: used_blocks - shared_blocks },
    { tone: BLOCK_TONES.s, label: t("perf_shared"), value: shared_blocks },
    { tone: BLOCK_TONES.c, label: t("perf_cached"), value: cached_blocks },
    { tone: BLOCK_TONES.f, label: t("perf_free"), value: free_blocks },
  ];
  return parts.map((part) => ({ ...part, text: number(part.value) }));
}

/** @param {Record<string, number>} memory @returns {Part[]} */
export function memoryParts(memory) {
  /** @type {Record<string, string>} */
  const names = {
    weights: t("perf_weights"),
    kv: t("perf_kv"),
    activations: t("perf_activations"),
    state: t("perf_state"),
  };
  return Object.entries(memory).map(([label, value]) => ({
    tone: MEMORY_TONES[label] ?? "tone-e",
    label: names[label] ?? label,
    value,
    text: megabytes(value),
  }));
}

/**
 * @param {[string, Kernel[]]} plan its name and kernels
 * @returns {Element[]}
 */
export function kernelTable([plan, rows]) {
  if (!rows.length) return [];
  const table = element("table", "kernels");
  table.append(element("caption", "", planName(plan)));
  const sorted = rows.toSorted((a, b) => b[2] - a[2]);
  const others = sorted.slice(MOST_ROWS);
  const shown = sorted.slice(0, MOST_ROWS);
  if (others.length) shown.push([t("perf_others"), sum(others, 1), sum(others, 2)]);
  const whole = sum(rows, 2);
  for (const [label, count, ms] of shown) {
    const row = element("tr");
    const name = element("th", "", label);
    name.setAttribute("scope", "row");
    const share = element("td", "share");
    share.append(bar([{ tone: "tone-b", label, value: ms, text: "" }], whole));
    row.append(name, element("td", "", t("perf_times", { count: number(count) })),
      element("td", "", milliseconds(ms)), share);
    table.append(row);
  }
  return [table];
}

/** @param {string} plan @param {Kernel[]} rows */
export function planText(plan, rows) {
  const [label, , ms] = rows.reduce((most, row) => (row[2] > most[2] ? row : most));
  const whole = sum(rows, 2);
  const percent = number(whole ? ms / whole : 0, { style: "percent" });
  const values = { plan: planName(plan), time: milliseconds(whole), count: number(sum(rows, 1)), label, percent };
  return t("perf_plan_text", values);
}

/** @param {string} plan */
function planName(plan) {
  return plan === "prefill" ? t("perf_prefill") : t("perf_decode");
}

/** @param {Kernel[]} rows @param {1 | 2} column */
function sum(rows, column) {
  return rows.reduce((all, row) => all + row[column], 0);
}

/** @param {number} bytes */
export function megabytes(bytes) {
  return t("megabytes", { megabytes: number(bytes / 1e6, { maximumSignificantDigits: 3 }) });
}

/** @param {number} value */
export function threeDigits(value) {
  return number(value, { maximumSignificantDigits: 3 });
}

/** @param {number} ms */
export function milliseconds(ms) {
  return t("perf_ms", { ms: threeDigits(ms) });
}
