/** The dialog of models: the catalogue, what is kept, files and addresses to open. */

import { byId, element } from "./dom.mjs";
import { number, t } from "./locale.mjs";
import { hasOffline, keepOffline, removeOffline } from "./offline.mjs";
import { remember, remembered } from "./remembered.mjs";

/**
 * @typedef {import("./client.mjs").Octavo} Octavo
 * @typedef {import("./client.mjs").ListedModel} ListedModel
 * @typedef {{model?: string | File[], keep?: boolean}} Choice
 */

const MODEL_KEY = "octavo-model";

/** @returns {Choice} what was chosen on the last visit */
export function rememberedChoice() {
  return { model: remembered("localStorage", MODEL_KEY) || undefined };
}

/** @param {string} model to be loaded on later visits */
export function rememberChoice(model) {
  remember("localStorage", MODEL_KEY, model);
}

export class ModelsDialog {
  #dialog = /** @type {HTMLDialogElement} */ (byId("models"));
  #files = /** @type {HTMLInputElement} */ (byId("model-files"));
  #octavo;
  #choose;
  #fail;

  /**
   * @param {Octavo} octavo
   * @param {(choice: Choice) => void} choose is called with what the visitor wants to load
   * @param {(error: unknown) => void} fail
   */
  constructor(octavo, choose, fail) {
    this.#octavo = octavo;
    this.#choose = choose;
    this.#fail = fail;
    byId("model").addEventListener("click", () => this.#open());
    byId("models-close").addEventListener("click", () => this.#dialog.close());
    byId("open-files").addEventListener("click", () => this.#files.click());
    this.#files.addEventListener("change", () => this.#openFiles([...(this.#files.files ?? [])]));
    byId("address-form").addEventListener("submit", (event) => this.#openAddress(event));
    byId("offline").addEventListener("click", () => this.#toggleOffline());
    addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
    addEventListener("drop", (event) => hasFiles(event) && this.#drop(event));
    // files that the system opens with the installed app
    /** @type {any} */ (globalThis).launchQueue?.setConsumer((/** @type {any} */ { files }) =>
      this.#openHandles(files));
  }

  async #open() {
    byId("model-list").replaceChildren(element("li", "hint", t("state_loading")));
    this.#dialog.showModal();
    await this.#refresh();
  }

  async #refresh() {
    try {
      const { models, storage } = await this.#octavo.models();
      byId("model-list").replaceChildren(...models.map((model) => this.#item(model)));
      this.#showStorage(storage);
      await this.#showOffline();
    } catch (error) {
      this.#dialog.close();
      this.#fail(error);
    }
  }

  async #showOffline() {
    byId("offline").hidden = byId("offline-hint").hidden = !navigator.serviceWorker;
    const has = await hasOffline();
    byId("offline").textContent = t(has ? "offline_remove" : "offline_keep");
    byId("offline-hint").textContent = t(has ? "offline_kept" : "offline_not_kept");
  }

  async #toggleOffline() {
    try {
      if (!(await hasOffline())) await keepOffline();
      else if (confirm(t("offline_question"))) await removeOffline();
      await this.#showOffline();
    } catch (error) {
      this.#dialog.close();
      this.#fail(error);
    }
  }

  /** @param {ListedModel} model */
  #item(model) {
    const item = element("li", "model-item");
    item.dataset.testid = "model-item";
    const about = element("div", "model-about");
    about.append(element("b", "", model.name), element("span", "hint", describe(model)));
    const actions = element("div", "model-actions");
    if (model.kept_bytes) actions.append(this.#button("delete", () => this.#remove(model)));
    actions.append(this.#button("load", () => this.#pick({ model: model.id })));
    item.append(about, actions);
    return item;
  }

  /**
   * @param {string} name
   * @param {() => void} action
   */
  #button(name, action) {
    const button = element("button", "quiet", t(name));
    button.setAttribute("type", "button");
    button.dataset.testid = `model-${name}`;
    button.addEventListener("click", action);
    return button;
  }

  /** @param {ListedModel} model */
  async #remove({ id, name, kept_bytes }) {
    if (!confirm(t("delete_question", { name, megabytes: megabytes(kept_bytes) }))) return;
    try {
      await this.#octavo.remove(id);
    } catch (error) {
      this.#dialog.close();
      return this.#fail(error);
    }
    await this.#refresh();
  }

  /** @param {{usage: number, quota: number} | null} storage */
  #showStorage(storage) {
    const meter = /** @type {HTMLMeterElement} */ (byId("storage"));
    meter.hidden = !storage;
    byId("storage-text").textContent = storage
      ? t("storage", { used: megabytes(storage.usage), free: megabytes(storage.quota - storage.usage) })
      : "";
    if (storage) meter.value = storage.usage / storage.quota;
  }

  /** @param {SubmitEvent} event */
  #openAddress(event) {
    event.preventDefault();
    const address = /** @type {HTMLInputElement} */ (byId("address"));
    this.#pick({ model: address.value.trim() });
    address.value = "";
  }

  /** @param {File[]} files */
  #openFiles(files) {
    this.#files.value = ""; // so that the same file can be chosen again
    const { checked: keep } = /** @type {HTMLInputElement} */ (byId("keep-files"));
    if (files.length) this.#pick({ model: files, keep });
  }

  /** @param {FileSystemFileHandle[]} handles */
  async #openHandles(handles) {
    this.#openFiles(await Promise.all(handles.map((handle) => handle.getFile())));
  }

  /** @param {DragEvent} event */
  #drop(event) {
    event.preventDefault();
    this.#openFiles([...(event.dataTransfer?.files ?? [])].filter(({ name }) => /\.gguf$/i.test(name)));
  }

  /** @param {Choice} choice */
  #pick(choice) {
    this.#dialog.close();
    this.#choose(choice);
  }
}

/** A text that is dropped is the box's. @param {DragEvent} event */
function hasFiles({ dataTransfer }) {
  return dataTransfer?.types.includes("Files") ?? false;
}

/** @param {ListedModel} model */
function describe({ size, kept_bytes, memory, context, license }) {
  const parts = [];
  if (size) parts.push(t("megabytes", { megabytes: megabytes(size) }));
  if (memory) parts.push(t("stats_memory", { megabytes: megabytes(memory) }));
  if (context) parts.push(t("model_context", { tokens: number(context) }));
  if (license) parts.push(license);
  if (size && kept_bytes >= size) parts.push(t("kept"));
  else if (kept_bytes) parts.push(t("kept_partly", { megabytes: megabytes(kept_bytes) }));
  return parts.join(" · ");
}

/** @param {number} bytes */
function megabytes(bytes) {
  return number(Math.round(bytes / 1e6));
}
