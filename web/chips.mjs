/** Files as they are shown: a chip each, with name, size and tokens. */

import { button, element } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./attached.mjs").Attachment} Attachment
 *
 * @typedef {object} ChipOptions
 * @property {(attachment: Attachment) => void} [remove] without it, chips stay
 * @property {(attachment: Attachment) => number | undefined} [tokens]
 */

/**
 * @param {Attachment[]} files
 * @param {ChipOptions} [options]
 * @returns {HTMLElement}
 */
export function chips(files, { remove, tokens } = {}) {
  const list = element("ul", "chips");
  list.setAttribute("aria-label", t("files"));
  for (const file of files) {
    const chip = element("li", "chip");
    chip.dataset.testid = "chip";
    const name = element("bdi", "chip-name", file.name);
    name.title = file.name;
    const count = tokens?.(file);
    const facts = [sizeOf(file.size)];
    if (count !== undefined) facts.push(t("chip_tokens", { tokens: number(count) }));
    chip.append(name, element("span", "chip-facts", facts.join(" · ")));
    if (remove) {
      const control = button("chip-remove", "file_remove", () => remove(file));
      control.textContent = "×";
      control.title = t("file_remove");
      control.setAttribute("aria-label", t("file_remove_of", { name: file.name }));
      chip.append(control);
    }
    list.append(chip);
  }
  list.hidden = !files.length;
  return list;
}

/** @param {number} bytes */
function sizeOf(bytes) {
  if (bytes < 1000) return t("bytes", { bytes: number(bytes) });
  return t("kilobytes", { kilobytes: number(bytes / 1000, { maximumSignificantDigits: 3 }) });
}
