/**
 * Lines within code, an item of a list or a quotation, and where it ends. Text is taken as far as it
 * is certain what it is: of a line that has just begun, perhaps nothing.
 */

/**
 * @typedef {object} Taken
 * @property {string} text what is within, without the marks before it
 * @property {string} rest what is left
 * @property {boolean} ended whether the rest is no part of it any more
 *
 * @typedef {number | "end" | "unsure"} Begin characters before the text of a line
 */

class Lines {
  #atStart = true;

  /**
   * @param {string} source
   * @param {boolean} isLast whether no more comes
   * @returns {Taken}
   */
  take(source, isLast) {
    let at = 0;
    const text = [];
    while (at < source.length) {
      const end = source.indexOf("\n", at);
      const next = end < 0 ? source.length : end + 1;
      let from = at;
      if (this.#atStart) {
        const begin = this.begin(source.slice(at, end < 0 ? next : end), end >= 0 || isLast);
        if (begin === "unsure") break;
        if (begin === "end") return { text: text.join(""), rest: this.left(source, at, next), ended: true };
        from = Math.min(at + begin, end < 0 ? next : end);
      }
      text.push(source.slice(from, next));
      this.#atStart = end >= 0;
      at = next;
    }
    return { text: text.join(""), rest: source.slice(at), ended: false };
  }

  /**
   * @param {string} line its beginning, or all of it
   * @param {boolean} isWhole
   * @returns {Begin}
   */
  begin(line, isWhole) {
    return isWhole || line ? 0 : "unsure";
  }

  /**
   * @param {string} source
   * @param {number} at where the line begins that is no part of it
   * @param {number} next where the line behind it begins
   */
  left(source, at, next) {
    return next > at ? source.slice(at) : "";
  }
}

/** Fenced code. */
export class CodeLines extends Lines {
  #indent;
  #closing;
  #maybe;
  language;

  /** @param {string} opening its first line */
  constructor(opening) {
    super();
    const [, indent, fence, info] = /^( *)(`{3,}|~{3,})([^\n]*)/.exec(opening) ?? ["", "", "```", ""];
    this.#indent = new RegExp(`^ {0,${indent.length}}`);
    this.#closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}[ \\t]*$`);
    this.#maybe = new RegExp(`^ {0,3}${fence[0]}*[ \\t]*$`);
    this.language = info.trim().split(/\s/, 1)[0];
  }

  /**
   * @param {string} line
   * @param {boolean} isWhole
   * @returns {Begin}
   */
  begin(line, isWhole) {
    if (isWhole && this.#closing.test(line)) return "end";
    if (!isWhole && this.#maybe.test(line)) return "unsure";
    return this.#indent.exec(line)?.[0].length ?? 0;
  }

  /** The closing line is part of it. @param {string} source @param {number} _ @param {number} next */
  left(source, _, next) {
    return source.slice(next);
  }
}

/** An item of a list. */
export class ItemLines extends Lines {
  #indent;
  #isFirst = true;

  /** @param {string} raw */
  constructor(raw) {
    super();
    const [, mark, spaces] = /^(\s*(?:[*+-]|\d{1,9}[.)]))([ \t]*)/.exec(raw) ?? ["", "", ""];
    this.#indent = mark.length + (spaces.length > 4 ? 1 : Math.max(1, spaces.length));
  }

  /**
   * @param {string} line
   * @param {boolean} isWhole
   * @returns {Begin}
   */
  begin(line, isWhole) {
    if (this.#isFirst) {
      this.#isFirst = false;
      return this.#indent;
    }
    const spaces = /^[ \t]*/.exec(line)?.[0] ?? "";
    if (spaces.startsWith("\t")) return 1;
    if (spaces.length >= this.#indent) return this.#indent;
    if (spaces.length < line.length) return "end";
    return isWhole ? spaces.length : "unsure";
  }
}

/** A quotation. */
export class QuoteLines extends Lines {
  /**
   * @param {string} line
   * @param {boolean} isWhole
   * @returns {Begin}
   */
  begin(line, isWhole) {
    const mark = /^ {0,3}> ?/.exec(line)?.[0];
    if (mark && (isWhole || mark.length < line.length)) return mark.length;
    return isWhole || !/^ {0,3}>? ?$/.test(line) ? "end" : "unsure";
  }
}
