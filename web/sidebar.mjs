/** The list of conversations: a side bar where there is room, else a drawer. */

import { announce } from "./announcer.mjs";
import { button, byId, element } from "./dom.mjs";
import { download, fromFile, ImportError, isSeen, MAX_TITLE, toJson, toMarkdown } from "./exchange.mjs";
import { number, t } from "./locale.mjs";
import { asMenu } from "./menu.mjs";

/**
 * @typedef {import("./conversations.mjs").Conversation} Conversation
 * @typedef {import("./conversations.mjs").Conversations} Conversations
 *
 * @typedef {object} Actions
 * @property {(id: string) => void} open
 * @property {(id: string) => Promise<unknown>} removing is waited for
 * @property {(id: string) => void} removed
 * @property {(error: unknown) => void} fail
 */

const WIDE = matchMedia("(width >= 60rem)");
const SAY_MS = 600; // once the visitor has stopped typing

export class Sidebar {
  #side = byId("side");
  #list = byId("conversation-list");
  #menu = byId("conversation-menu");
  #search = /** @type {HTMLInputElement} */ (byId("conversation-search"));
  #file = /** @type {HTMLInputElement} */ (byId("import-file"));
  #note = byId("side-note");
  #store;
  #actions;
  #current = "";
  /** While a title is being changed the list stays as it is. */
  #isRenaming = false;
  #drawing = Promise.resolve();
  /** Whether it will be drawn again, and that has not begun. */
  #willDraw = false;
  /** What it shows: drawn again, it would lose the click that has just begun. */
  #shown = "";
  /** Timer of what is said about a search. */
  #saying = 0;

  /**
   * @param {Conversations} store
   * @param {Actions} actions
   */
  constructor(store, actions) {
    this.#store = store;
    this.#actions = actions;
    this.#adapt();
    WIDE.addEventListener("change", () => this.#adapt());
    this.#search.addEventListener("input", () => {
      this.refresh();
      clearTimeout(this.#saying);
      this.#saying = setTimeout(() => {
        announce(t("search_found", { count: number(this.#list.childElementCount) }));
      }, SAY_MS);
    });
    byId("import").addEventListener("click", () => this.#file.click());
    this.#file.addEventListener("change", () => this.#import());
    byId("export-all").addEventListener("click", () => this.#try(async () => {
      download(toJson(await this.#store.readAll()), "octavo", "json");
    }));
    this.#side.addEventListener("toggle", (event) => {
      const isOpen = /** @type {ToggleEvent} */ (event).newState === "open";
      byId("open-side").ariaExpanded = String(isOpen);
    });
    this.#side.addEventListener("focusout", ({ relatedTarget: to }) => {
      // whoever leaves by keyboard shall see what has the focus
      if (to instanceof Node && to !== byId("open-side") && !this.#side.contains(to)) this.#close();
    });
    this.#menu.addEventListener("click", () => this.#menu.hidePopover());
    asMenu(this.#menu);
  }

  /** Draws the list again; one after the other, the last one as things are then. */
  refresh() {
    if (this.#willDraw) return this.#drawing;
    this.#willDraw = true;
    this.#drawing = this.#drawing.then(() => {
      this.#willDraw = false;
      return this.#try(() => this.#draw());
    });
    return this.#drawing;
  }

  /** @param {string | null} id of the open conversation */
  setCurrent(id) {
    this.#current = id ?? "";
    for (const item of this.#list.children) this.#mark(/** @type {HTMLElement} */ (item));
  }

  /** A drawer lies above the page, and Escape or a click beside it closes it. */
  #adapt() {
    byId("open-side").hidden = WIDE.matches;
    if (WIDE.matches) this.#side.removeAttribute("popover");
    else this.#side.setAttribute("popover", "auto");
  }

  #close() {
    if (this.#side.matches(":popover-open")) this.#side.hidePopover();
  }

  async #draw() {
    const found = await this.#store.list(this.#search.value);
    if (this.#isRenaming) return;
    const isSearch = Boolean(this.#search.value.trim());
    const items = found.map(({ id, title }) => [id, title]);
    const shown = JSON.stringify([document.documentElement.lang, isSearch, items]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const { id } = /** @type {HTMLElement | null} */ (focused?.closest("[data-id]"))?.dataset ?? {};
    this.#list.replaceChildren(...found.map((conversation) => this.#item(conversation)));
    if (id) this.#control(id, focused?.dataset.testid ?? "")?.focus();
    const empty = byId("side-empty");
    empty.hidden = found.length > 0;
    this.#list.hidden = !empty.hidden;
    empty.textContent = t(isSearch ? "search_empty" : "conversations_empty");
  }

  /** @param {Conversation} conversation */
  #item(conversation) {
    const { id, title } = conversation;
    const item = element("li", "conversation");
    item.dataset.id = id;
    item.dataset.testid = "conversation";
    const open = button("conversation-open", "conversation_open", () => {
      this.#close();
      this.#actions.open(id);
    });
    open.textContent = open.title = title;
    open.dir = "auto";
    const more = button("conversation-more", "conversation_more", () => this.#openMenu(conversation));
    more.textContent = "⋯";
    more.title = t("conversation_more");
    more.setAttribute("aria-label", t("conversation_more_of", { title }));
    more.setAttribute("aria-haspopup", "menu");
    item.append(open, more);
    this.#mark(item);
    return item;
  }

  /** @param {HTMLElement} item */
  #mark(item) {
    const isCurrent = item.dataset.id === this.#current;
    item.querySelector(".conversation-open")?.setAttribute("aria-current", String(isCurrent));
  }

  /**
   * @param {string} id of a conversation
   * @param {string} name
   */
  #control(id, name) {
    const found = this.#list.querySelector(`[data-id="${id}"] [data-testid="${name}"]`);
    return /** @type {HTMLElement | null} */ (found);
  }

  /** @param {Conversation} conversation */
  #openMenu(conversation) {
    const { id, title } = conversation;
    const entry = (/** @type {string} */ name, /** @type {() => unknown} */ action) => {
      const created = button("menu-entry", name, () => this.#try(action));
      created.role = "menuitem";
      return created;
    };
    this.#menu.ariaLabel = t("conversation_more_of", { title });
    const entries = [
      entry("rename", () => this.#rename(conversation)),
      entry("export_json", () => this.#export(id, "json")),
      entry("export_markdown", () => this.#export(id, "md")),
      entry("conversation_delete", () => this.#remove(id)),
    ];
    this.#menu.replaceChildren(...entries);
    const anchor = /** @type {HTMLElement} */ (this.#control(id, "conversation-more"));
    this.#menu.showPopover();
    const { right, bottom, top } = anchor.getBoundingClientRect();
    const { offsetHeight: height, offsetWidth: width } = this.#menu;
    const isBelow = bottom + height < innerHeight;
    this.#menu.style.top = `${isBelow ? bottom : Math.max(0, top - height)}px`;
    this.#menu.style.left = `${Math.max(8, right - width)}px`;
    entries[0].focus();
  }

  /** @param {Conversation} conversation */
  #rename({ id, title }) {
    const item = this.#control(id, "conversation-open")?.parentElement;
    if (!item) return; // another tab has deleted it
    const box = document.createElement("input");
    box.value = title;
    box.maxLength = MAX_TITLE;
    box.className = "field";
    box.dir = "auto";
    box.dataset.testid = "conversation-title";
    box.setAttribute("aria-label", t("rename_label"));
    this.#isRenaming = true;
    this.#shown = "";
    const end = async (/** @type {boolean} */ keeps) => {
      if (!this.#isRenaming) return;
      this.#isRenaming = false;
      const wanted = box.value.trim();
      const hadFocus = document.activeElement === box;
      if (keeps && isSeen(wanted) && wanted !== title) {
        await this.#try(() => this.#store.patch(id, { title: wanted }));
      }
      await this.refresh();
      if (hadFocus) this.#control(id, "conversation-more")?.focus();
    };
    box.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault(); // Escape would close the drawer
      event.stopPropagation();
      end(event.key === "Enter");
    });
    box.addEventListener("blur", () => end(true));
    item.replaceChildren(box);
    box.select();
    box.focus();
  }

  /**
   * @param {string} id
   * @param {"json" | "md"} ending
   */
  async #export(id, ending) {
    const whole = await this.#store.read(id);
    if (!whole) return;
    const names = { user: t("you"), assistant: t("assistant") };
    const text = ending === "json" ? toJson([whole]) : toMarkdown(whole, names);
    download(text, whole.conversation.title, ending);
  }

  /** What was deleted can be had back until something else is. @param {string} id */
  async #remove(id) {
    const item = this.#control(id, "conversation-open")?.parentElement;
    const next = item?.nextElementSibling ?? item?.previousElementSibling;
    const nextId = /** @type {HTMLElement | null} */ (next)?.dataset.id;
    await this.#actions.removing(id);
    const whole = await this.#store.remove(id);
    if (!whole) return;
    this.#actions.removed(id);
    const undo = button("link", "undo", () => this.#try(async () => {
      await this.#store.add([whole]);
      this.#say("");
      await this.refresh();
      this.#control(id, "conversation-open")?.focus();
    }));
    this.#say(t("deleted", { title: whole.conversation.title }), undo);
    await this.refresh();
    const heir = nextId ? this.#control(nextId, "conversation-open") : this.#search;
    heir?.focus();
  }

  async #import() {
    const [file] = this.#file.files ?? [];
    this.#file.value = ""; // so that the same file can be chosen again
    if (!file) return;
    try {
      const wholes = await fromFile(file);
      await this.#store.add(wholes);
      this.#say(t("imported", { count: number(wholes.length) }));
    } catch (error) {
      if (error instanceof ImportError) this.#say(t(error.key, { name: file.name }));
      else this.#actions.fail(error);
    }
  }

  /**
   * @param {string} text
   * @param {HTMLElement[]} more
   */
  #say(text, ...more) {
    this.#note.replaceChildren(element("span", "", text), ...more);
    this.#note.hidden = !text;
    if (text) announce(text);
  }

  /** @param {() => unknown} action */
  async #try(action) {
    try {
      await action();
    } catch (error) {
      this.#actions.fail(error);
    }
  }
}
