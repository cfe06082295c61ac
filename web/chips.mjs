/** Files as they are shown: a chip each, with name, size and tokens; passages of files, to be opened. */

import { button, element } from "./dom.mjs";
import { number, t } from "./locale.mjs";

/**
 * @typedef {import("./attached.mjs").Attachment} Attachment
 *
 * @typedef {object} ChipOptions
 * @property {(attachment: Attachment) => void} [remove] without it, chips stay
 * @property {(attachment: Attachment) => number | undefined} [tokens]
 * @property {(attachment: Attachment) => boolean} [canSearch] whether it can be searched in instead
 * @property {(attachment: Attachment) => void} [search] chooses between that and the whole file
 */

/**
 * @param {Attachment[]} files
 * @param {ChipOptions} [options]
 * @returns {HTMLElement}
 */
export function chips(files, { remove, tokens, canSearch, search } = {}) {
  const list = element("ul", "chips");
  list.setAttribute("aria-label", t("files"));
  for (const file of files) {
    const chip = element("li", "chip");
    chip.dataset.testid = "chip";
    const name = element("bdi", "chip-name", file.name);
    name.title = file.name;
    const count = tokens?.(file);
    const facts = [file.place ? placeOf(file) : sizeOf(file.size)];
    if (count !== undefined && !file.searched) facts.push(t("chip_tokens", { tokens: number(count) }));
    chip.append(name, element("span", "chip-facts", facts.join(" · ")));
    if (search && canSearch?.(file)) {
      const control = button("link chip-search", "search_inside", () => search(file));
      control.setAttribute("aria-pressed", String(Boolean(file.searched)));
      control.title = t("search_inside_hint");
      control.setAttribute("aria-label", t("search_inside_of", { name: file.name }));
      chip.append(control);
    }
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

/**
 * The passages that an answer was given, each of which opens.
 *
 * @param {Attachment[]} passages
 * @returns {HTMLElement}
 */
export function sources(passages) {
  const list = element("ul", "sources");
  list.setAttribute("aria-label", t("sources"));
  for (const passage of passages) {
    const source = element("li");
    const opened = element("details", "source");
    opened.dataset.testid = "source";
    const summary = element("summary");
    const text = element("p", "text", passage.text);
    text.dir = "auto";
    summary.append(element("bdi", "chip-name", passage.name), element("span", "chip-facts", placeOf(passage)));
    opened.append(summary, text);
    source.append(opened);
    list.append(source);
  }
  return list;
}

/** Where a passage is, and how near it is, in words. @param {Attachment} passage */
export function placeOf({ place }) {
  if (!place) return "";
  const values = { first: number(place.first), last: number(place.last) };
  const similarity = number(place.similarity, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  return `${t(place.first === place.last ? "place_line" : "place_lines", values)} · ${similarity}`;
}

/** @param {number} bytes */
function sizeOf(bytes) {
  if (bytes < 1000) return t("bytes", { bytes: number(bytes) });
  return t("kilobytes", { kilobytes: number(bytes / 1000, { maximumSignificantDigits: 3 }) });
}
