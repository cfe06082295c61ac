/** One part of the performance panel: a title, a picture, what its colours mean, and a summary. */

import { element } from "./dom.mjs";
import { t } from "./locale.mjs";
import { legend } from "./pictures.mjs";

/** @typedef {{parts?: import("./pictures.mjs").Part[], summary: string}} Words */

export class Figure {
  section = element("section", "figure");
  picture = element("div", "figure-picture");
  #legend = element("div");
  #summary = element("p", "hint");
  #shown = "";

  /**
   * @param {string} name for tests and the style sheet
   * @param {string} title of its string
   * @param {"img" | "group"} [role] a picture that the words beside it describe, or what is text itself
   */
  constructor(name, title, role = "img") {
    const heading = localized("h3", "", title);
    heading.id = `figure-${name}-title`;
    this.#legend.id = `figure-${name}-legend`;
    this.#summary.id = `figure-${name}-summary`;
    this.section.dataset.testid = `figure-${name}`;
    this.picture.classList.add(`figure-${name}`);
    this.picture.setAttribute("role", role);
    this.picture.setAttribute("aria-labelledby", heading.id);
    this.picture.setAttribute("aria-describedby", `${this.#summary.id} ${this.#legend.id}`);
    this.section.append(heading, this.picture, this.#legend, this.#summary);
  }

  /**
   * Shows something, unless it is what is shown already.
   *
   * @param {unknown} what all that picture and words depend on, as JSON
   * @param {() => Element[]} draw
   * @param {() => Words} say
   */
  show(what, draw, say) {
    const shown = JSON.stringify(what);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.picture.replaceChildren(...draw());
    const { parts = [], summary } = say();
    this.#legend.replaceChildren(...(parts.length ? [legend(parts)] : []));
    this.summarize(summary);
  }

  /** @param {string} summary */
  summarize(summary) {
    if (this.#summary.textContent !== summary) this.#summary.textContent = summary;
  }

  /** The next thing is shown even if it is the same. */
  forget() {
    this.#shown = "";
  }
}

/**
 * An element with a text that follows the page's language.
 *
 * @param {string} tag
 * @param {string} className
 * @param {string} key of its string
 */
export function localized(tag, className, key) {
  const created = element(tag, className, t(key));
  created.dataset.i18n = key;
  return created;
}
