/** The files of the question that is being written: chosen, dropped on the page, or pasted. */

import { attachmentOf, attachmentOfText, AttachError, MAX_FILES } from "./attached.mjs";
import { chips } from "./chips.mjs";
import { button, byId } from "./dom.mjs";

/** @typedef {import("./attached.mjs").Attachment} Attachment */

const LONG_PASTE = 5000; // characters: more become a file

export class Attachments {
  /** @type {Attachment[]} */
  files = [];
  #input = /** @type {HTMLInputElement} */ (byId("attach-files"));
  #place = byId("attached");
  #prompt;
  #tokens;
  #changed;
  #fail;
  #canSearch;
  #openSearch;

  /**
   * @param {HTMLTextAreaElement} prompt
   * @param {object} host
   * @param {(attachment: Attachment) => number | undefined} host.tokens if they are known
   * @param {() => void} host.changed
   * @param {(error: AttachError) => void} host.fail
   * @param {(attachment: Attachment) => boolean} host.canSearch
   * @param {(files: Attachment[]) => void} host.openSearch
   */
  constructor(prompt, { tokens, changed, fail, canSearch, openSearch }) {
    this.#prompt = prompt;
    this.#tokens = tokens;
    this.#changed = changed;
    this.#fail = fail;
    this.#canSearch = canSearch;
    this.#openSearch = openSearch;
    byId("attach").addEventListener("click", () => this.#input.click());
    this.#input.addEventListener("change", async () => {
      const files = [...(this.#input.files ?? [])];
      this.#input.value = ""; // so that the same file can be chosen again
      await this.add(files);
      prompt.focus();
    });
    // models are opened by models.mjs
    addEventListener("drop", ({ dataTransfer }) =>
      this.add([...(dataTransfer?.files ?? [])].filter(({ name }) => !/\.gguf$/i.test(name))));
    prompt.addEventListener("paste", (event) => this.#paste(event));
  }

  /** @param {File[]} files */
  async add(files) {
    for (const file of files) {
      try {
        this.#push(await attachmentOf(file));
      } catch (error) {
        if (error instanceof AttachError) this.#fail(error);
        else this.#fail(new AttachError("attach_unreadable", file.name));
      }
    }
  }

  /** @param {Attachment[]} files in the place of those that are here */
  set(files) {
    this.files = files;
    this.show();
    this.#changed();
  }

  /** Brings the chips up to date. */
  show() {
    const remove = (/** @type {Attachment} */ file) => {
      const at = this.files.indexOf(file);
      this.set(this.files.filter((other) => other !== file));
      const controls = this.#place.querySelectorAll("button");
      (controls[Math.min(at, controls.length - 1)] ?? this.#prompt).focus();
    };
    const search = (/** @type {Attachment} */ file) => {
      file.searched = !file.searched;
      this.show();
      this.#changed();
    };
    const at = [...this.#place.querySelectorAll("button")].findIndex((each) => each === document.activeElement);
    const [tokens, canSearch] = [this.#tokens, this.#canSearch];
    this.#place.replaceChildren(chips(this.files, { remove, tokens, canSearch, search }));
    const texts = this.files.filter(canSearch);
    if (texts.length) this.#place.append(button("link search-open", "search_open", () => this.#openSearch(texts)));
    if (at >= 0) this.#place.querySelectorAll("button")[at]?.focus();
  }

  /** @param {Attachment} attachment that is read already */
  put(attachment) {
    this.#try(() => this.#push(attachment));
  }

  /** @param {() => void} action */
  #try(action) {
    try {
      action();
    } catch (error) {
      this.#fail(/** @type {AttachError} */ (error));
    }
  }

  /** @param {Attachment} attachment */
  #push(attachment) {
    if (this.files.length >= MAX_FILES) throw new AttachError("attach_many", attachment.name);
    this.set([...this.files, attachment]);
  }

  /** @param {ClipboardEvent} event */
  #paste(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!files.length && text.length <= LONG_PASTE) return;
    if (files.length && text) return; // a program's text that comes with a picture of it
    event.preventDefault();
    if (files.length) return void this.add(files);
    this.#try(() => this.#push(attachmentOfText(text, `pasted-${this.files.length + 1}.txt`)));
  }
}
