/** A block of code: the name of its language, a button that copies it, and its colours. */

import { copyButton } from "./copy.mjs";
import { element } from "./dom.mjs";
import { t } from "./locale.mjs";
import { colour } from "./highlight.mjs";

const LONGEST_NAME = 24; // characters of a language's name

export class CodeView {
  element = element("div", "code-block");
  #code = element("code");
  #language;
  #text = "";
  /** Characters whose colours are known, or are being worked out. */
  #coloured = 0;

  /** @param {string} language as the text calls it; it may be empty */
  constructor(language) {
    this.#language = language;
    const head = element("div", "code-head");
    const name = element("span", "code-language", language.slice(0, LONGEST_NAME));
    const copy = copyButton(() => this.#text.replace(/\n$/, ""));
    copy.dataset.testid = "copy-code";
    copy.setAttribute("aria-label", language ? t("copy_code_of", { language }) : t("copy_code"));
    head.append(name, copy);
    const pre = element("pre");
    pre.append(this.#code);
    this.element.append(head, pre);
  }

  /** @param {string} text */
  append(text) {
    this.#text += text;
    this.#code.append(text);
  }

  /** The text is whole: gives it its colours. */
  finish() {
    if (this.#coloured === this.#text.length) return;
    this.#coloured = this.#text.length;
    if (this.#language) colour(this.#code, this.#text, this.#language);
  }
}
