/** The messages of the open conversation as they are shown, each with what can be done with it. */

import { readable } from "./announcer.mjs";
import { chips, sources } from "./chips.mjs";
import { copyButton } from "./copy.mjs";
import { autosize, button, element } from "./dom.mjs";
import { number, t } from "./locale.mjs";
import { MarkdownView, PlainView } from "./markdown.mjs";
import { markScrollable, watchScrollable } from "./scrolling.mjs";

/**
 * @typedef {import("./branches.mjs").Branches} Branches
 * @typedef {import("./branches.mjs").Message} Message
 * @typedef {import("./attached.mjs").Attachment} Attachment
 *
 * @typedef {object} Actions what the visitor may do
 * @property {(message: Message, text: string, files: Attachment[]) => void} edit asks another question in its place
 * @property {(message: Message) => void} regenerate answers again
 * @property {(message: Message) => void} goOn lets an answer go on
 * @property {(id: string) => void} switchTo shows another branch
 */

export class Transcript {
  #log;
  /** Where messages are put: beside the page while many are, for it would be laid out for each. @type {ParentNode} */
  #place;
  #follow;
  #actions;
  /** Of the answers shown, by message. @type {Map<string, ReplyView>} */
  #replies = new Map();
  #can = { ask: false, browse: true };

  /**
   * @param {HTMLElement} log
   * @param {(force?: boolean) => void} follow keeps the end in sight
   * @param {Actions} actions
   */
  constructor(log, follow, actions) {
    this.#place = this.#log = log;
    this.#follow = (/** @type {boolean} */ force = false) => void (this.#place === log && follow(force));
    this.#actions = actions;
  }

  /**
   * Shows the path through the branches.
   *
   * @param {Branches} branches
   * @param {number} [same] messages at its beginning that stay as they are: one may be edited just now
   */
  show(branches, same = 0) {
    for (const shown of /** @type {HTMLElement[]} */ ([...this.#log.children]).slice(same)) {
      this.#replies.delete(shown.dataset.message ?? "");
      shown.remove();
    }
    const rest = branches.path.slice(same);
    if (rest.length) this.close();
    this.#place = document.createDocumentFragment();
    for (const message of rest) {
      const shown = this.append(message, branches);
      if (shown instanceof ReplyView) this.end(message, branches);
    }
    this.#log.append(this.#place);
    this.#place = this.#log;
    this.#follow(same === 0);
  }

  /**
   * @param {Message} message
   * @param {Branches} branches
   */
  append(message, branches) {
    if (message.role === "user") return this.#question(message, branches);
    const found = branches.get(message.parent)?.files?.filter(({ place }) => place) ?? [];
    const reply = new ReplyView(message, this.#follow, found);
    this.#replies.set(message.id, reply);
    this.#place.append(reply.element);
    this.#follow(true);
    return reply;
  }

  /** @param {string} id */
  reply(id) {
    return /** @type {ReplyView} */ (this.#replies.get(id));
  }

  /**
   * The answer is whole, as far as it goes. The last one can go on if it did not end by itself.
   *
   * @param {Message} message
   * @param {Branches} branches
   */
  end(message, branches) {
    const reply = this.reply(message.id);
    reply.end(message);
    const canGoOn = message.finish && (message.content.trim() || message.reasoning);
    if (canGoOn && message.id === branches.head) {
      reply.foot.append(this.#needing("ask", "continue", () => this.#actions.goOn(message)));
    }
    if (message.content) reply.foot.append(copyButton(() => message.content));
    const regenerate = () => this.#actions.regenerate(message);
    reply.foot.append(this.#needing("ask", "regenerate", regenerate));
    reply.foot.append(...this.#switches(message, branches));
    this.#follow();
  }

  /** Something follows the answer that could go on. */
  close() {
    this.#log.querySelector("[data-testid=continue]")?.remove();
  }

  /** @param {{ask: boolean, browse: boolean}} can what is possible at present */
  enable(can) {
    this.#can = can;
    for (const each of this.#log.querySelectorAll("button[data-needs]")) {
      this.#enable(/** @type {HTMLButtonElement} */ (each));
    }
  }

  /** @param {HTMLButtonElement} control */
  #enable(control) {
    const { needs, end } = control.dataset;
    control.disabled = end !== undefined || !this.#can[/** @type {"ask" | "browse"} */ (needs)];
  }

  /**
   * @param {"ask" | "browse"} needs
   * @param {string} name of its string and test id
   * @param {() => void} action
   */
  #needing(needs, name, action) {
    const created = button("link", name, action);
    created.dataset.needs = needs;
    this.#enable(created);
    return created;
  }

  /**
   * @param {Message} message
   * @param {Branches} branches
   */
  #question(message, branches) {
    const asked = element("article", "question");
    asked.dataset.message = message.id;
    const text = element("p", "text", message.content);
    text.dir = "auto";
    text.dataset.testid = "question";
    const foot = element("p", "reply-foot");
    const edit = this.#needing("ask", "edit", () => this.#edit(message, asked));
    foot.append(...this.#switches(message, branches), edit, copyButton(() => message.content));
    text.hidden = !message.content;
    asked.append(element("h2", "aside", t("you")), chips(message.files?.filter(({ place }) => !place) ?? []), text, foot);
    this.#place.append(asked);
    this.#follow(true);
    return asked;
  }

  /**
   * ‹ 2/3 › where there are several.
   *
   * @param {Message} message
   * @param {Branches} branches
   */
  #switches(message, branches) {
    const siblings = branches.siblings(message);
    if (siblings.length < 2) return [];
    const at = siblings.findIndex(({ id }) => id === message.id);
    const group = element("span", "branches");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", t("branches"));
    const place = element("span", "numbers", `${number(at + 1)}/${number(siblings.length)}`);
    place.dataset.testid = "branch";
    const step = (/** @type {string} */ name, /** @type {string} */ sign, /** @type {number} */ to) => {
      const control = this.#needing("browse", name, () => this.#switchTo(siblings[to], name));
      control.setAttribute("aria-label", control.title = t(name));
      control.textContent = sign;
      if (!siblings[to]) control.dataset.end = "";
      this.#enable(control);
      return control;
    };
    group.append(step("branch_previous", "‹", at - 1), place, step("branch_next", "›", at + 1));
    return [group];
  }

  /**
   * The focus stays on the control, or goes to its neighbour at an end.
   *
   * @param {Message} sibling
   * @param {string} name
   */
  #switchTo({ id }, name) {
    this.#actions.switchTo(id);
    const controls = [...this.#log.querySelectorAll(`[data-message="${id}"] .branches button`)];
    const enabled = /** @type {HTMLButtonElement[]} */ (controls).filter(({ disabled }) => !disabled);
    const same = enabled.find(({ dataset }) => dataset.testid === name.replaceAll("_", "-"));
    (same ?? enabled[0])?.focus();
  }

  /**
   * @param {Message} message
   * @param {HTMLElement} asked
   */
  #edit(message, asked) {
    const shown = [...asked.children];
    const form = element("form", "edit");
    let files = message.files ?? [];
    const remove = (/** @type {Attachment} */ file) => {
      files = files.filter((other) => other !== file);
      form.firstElementChild?.replaceWith(chips(files, { remove }));
      box.focus();
    };
    const box = document.createElement("textarea");
    box.value = message.content;
    box.dir = "auto";
    box.dataset.testid = "edit-text";
    box.setAttribute("aria-label", t("edit_label"));
    const close = () => {
      asked.replaceChildren(...shown);
      /** @type {HTMLElement | null} */ (asked.querySelector("[data-testid=edit]"))?.focus();
    };
    const save = () => {
      const text = box.value.trim();
      if ((!text && !files.length) || !this.#can.ask) return;
      close();
      this.#actions.edit(message, text, files);
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation(); // it ends the editing, and no answer
        close();
      }
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      save();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      save();
    });
    const row = element("p", "row");
    const send = this.#needing("ask", "edit_send", save);
    send.className = "quiet";
    row.append(button("quiet", "cancel", close), send);
    form.append(chips(files, { remove }), box, row);
    asked.replaceChildren(form);
    autosize(box);
    box.focus();
    form.scrollIntoView({ block: "nearest" });
  }
}

/** One answer: its reasoning, its text, and a foot for what can be done with it. */
export class ReplyView {
  element = element("article", "reply");
  foot = element("p", "reply-foot");
  #reasoning = element("details", "reasoning");
  #summary = element("summary");
  #thought = element("p", "text");
  #answer = element("div", "answer");
  #view;
  #thoughts;
  #isThinking = false;

  /**
   * @param {Message} message
   * @param {(force?: boolean) => void} follow
   * @param {Attachment[]} found passages that it was given
   */
  constructor(message, follow, found) {
    this.element.dataset.message = message.id;
    this.#reasoning.dataset.testid = "reasoning";
    this.#reasoning.hidden = true;
    this.#reasoning.append(this.#summary, this.#thought);
    this.#answer.dataset.testid = "answer";
    this.#thought.dir = "auto";
    const who = element("h2", "aside", t("assistant"));
    this.element.append(who, this.#reasoning, this.#answer);
    if (found.length) this.element.append(sources(found));
    this.element.append(this.foot);
    this.#view = new MarkdownView(this.#answer, () => follow());
    watchScrollable(this.#answer);
    this.#thoughts = new PlainView(this.#thought, () => follow());
    this.begin();
    if (message.reasoning) this.think(message.reasoning);
    if (message.content) this.append(message.content);
  }

  begin() {
    this.foot.replaceChildren();
    this.#answer.ariaBusy = "true";
  }

  /** The answer so far, in Markdown. */
  get text() {
    return this.#view.text;
  }

  /** The answer so far, as one reads it aloud. */
  get readable() {
    return readable(this.#answer);
  }

  /**
   * @param {string} content
   * @param {number} [thought_ms] how long the reasoning took
   */
  append(content, thought_ms) {
    if (this.#isThinking) this.#thoughtFor(thought_ms);
    this.#view.append(content);
  }

  /** @param {string} reasoning */
  think(reasoning) {
    if (!this.#isThinking) this.#summary.textContent = t("reasoning_now");
    this.#isThinking = true;
    this.#reasoning.hidden = false;
    this.#thoughts.append(reasoning);
  }

  /** @param {Message} message */
  end({ finish, thought_ms }) {
    this.#thoughts.finish();
    this.#view.finish();
    this.#answer.ariaBusy = "false";
    markScrollable(this.#answer);
    this.#thoughtFor(thought_ms);
    this.foot.replaceChildren();
    if (finish) this.foot.append(element("span", "finish", t(`finish_${finish}`)));
  }

  /** @param {number} [thought_ms] */
  #thoughtFor(thought_ms) {
    this.#isThinking = false;
    this.#summary.textContent = thought_ms === undefined
      ? t("reasoning")
      : t("thought", { seconds: number(Math.max(1, Math.round(thought_ms / 1000))) });
  }
}
