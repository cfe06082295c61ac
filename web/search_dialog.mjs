/** The view of search: a question, and the passages that are nearest to it, without asking the model. */

import { placeOf } from "./chips.mjs";
import { newDialog, styled } from "./dialog.mjs";
import { button, element } from "./dom.mjs";
import { number, t } from "./locale.mjs";
import { passageOf } from "./search.mjs";

/**
 * @typedef {import("./attached.mjs").Attachment} Attachment
 * @typedef {import("./search.mjs").Hit} Hit
 *
 * @typedef {object} View
 * @property {Attachment[]} files
 * @property {string} question to begin with
 * @property {(question: string, waiting: import("./search.mjs").Waiting) => Promise<Hit[]>} hits
 * @property {(passage: Attachment) => void} add puts a passage into the message
 */

const SHOWN = 10;

/** Resolves when the dialog is closed. @param {View} view */
export async function openSearch({ files, question, hits, add }) {
  await styled("./search.css");
  const { dialog, body } = newDialog("search", "search_title");
  const form = element("form", "search-form");
  const label = element("label", "", t("search_question"));
  const box = document.createElement("input");
  const run = document.createElement("button");
  const status = element("p", "search-status hint");
  const list = element("ol", "search-list");
  let under = new AbortController();
  const stop = button("quiet", "stop", () => under.abort());
  box.className = "field";
  Object.assign(box, { id: "search-question", type: "text", autocomplete: "off", value: question, dir: "auto" });
  Object.assign(run, { type: "submit", className: "quiet strong", textContent: t("search") });
  label.setAttribute("for", box.id);
  status.setAttribute("role", "status");
  status.textContent = t("search_in", { files: files.map(({ name }) => name).join(", ") });
  stop.hidden = true;
  for (const [name, part] of Object.entries({ question: box, run, stop, status, list })) {
    part.dataset.testid = `search-${name}`;
  }
  const row = element("p", "search-row");
  row.append(box, run, stop);
  form.append(label, row, status);
  body.append(form, list);

  const setRunning = (/** @type {boolean} */ isRunning) => {
    run.hidden = isRunning;
    stop.hidden = !isRunning;
    (isRunning ? stop : box).focus();
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!run.hidden) await search();
  });
  document.body.append(dialog);
  dialog.showModal();
  box.focus();
  await new Promise((resolve) => dialog.addEventListener("close", resolve));
  under.abort();

  async function search() {
    under = new AbortController();
    const { signal } = under;
    setRunning(true);
    delete status.dataset.code;
    list.replaceChildren();
    status.textContent = t("stage_start");
    try {
      const found = await hits(box.value, { signal, onProgress: (progress) => (status.textContent = said(progress)) });
      list.replaceChildren(...found.slice(0, SHOWN).map((hit) => item(passageOf(hit))));
      status.textContent = t("search_found_in", { count: number(list.childElementCount) });
    } catch (error) {
      const { code = "internal", message, hint = "" } = /** @type {any} */ (error);
      status.textContent = `${message} ${hint}`;
      status.dataset.code = code;
    } finally {
      setRunning(false);
    }
  }

  /** @param {Attachment} passage */
  function item(passage) {
    const shown = element("li", "search-item");
    shown.dataset.testid = "search-hit";
    const head = element("p", "search-head");
    const text = element("p", "text", passage.text);
    const place = placeOf(passage);
    text.dir = "auto";
    const put = button("link", "search_add", () => {
      if (put.ariaDisabled) return;
      add(passage);
      put.textContent = put.ariaLabel = t("search_added");
      put.ariaDisabled = "true"; // one that is disabled would lose the focus
    });
    put.setAttribute("aria-label", t("search_add_of", { name: passage.name, place }));
    head.append(element("bdi", "search-name", passage.name), element("span", "hint", place), put);
    shown.append(head, text);
    return shown;
  }
}

/** How far a search is, in steps that a screen reader can follow. @param {{stage: string, loaded: number, total: number}} progress */
function said({ stage, loaded, total }) {
  const percent = number(total ? Math.floor((loaded / total) * 10) / 10 : 0, { style: "percent" });
  return `${t(`stage_${stage}`)} ${percent}`;
}
