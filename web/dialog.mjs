/** Dialogs that are made when they are opened, and gone when they are closed. */

import { button, element } from "./dom.mjs";
import { t } from "./locale.mjs";

/**
 * A modal dialog with a title and a button that closes it; the focus goes back when it is closed.
 *
 * @param {string} name of its class and test ids
 * @param {string} title of its string
 * @returns {{dialog: HTMLDialogElement, body: HTMLElement}} it is not shown yet
 */
export function newDialog(name, title) {
  const dialog = document.createElement("dialog");
  dialog.className = `models ${name}-dialog`;
  dialog.dataset.testid = `${name}-dialog`;
  const heading = element("h2", "", t(title));
  heading.id = `${name}-title`;
  dialog.setAttribute("aria-labelledby", heading.id);
  const head = element("header", "models-head");
  const close = button("quiet", "close", () => dialog.close());
  close.dataset.testid = `${name}-close`;
  head.append(heading, close);
  const body = element("div");
  dialog.append(head, body);
  dialog.addEventListener("close", () => dialog.remove());
  return { dialog, body };
}

/**
 * Loads a style sheet once, which the page does without until then.
 *
 * @param {string} name of the file
 */
export async function styled(name) {
  const { href } = new URL(name, import.meta.url);
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return;
  await new Promise((resolve) => {
    const link = document.createElement("link");
    Object.assign(link, { rel: "stylesheet", href, onload: resolve, onerror: resolve });
    document.head.append(link);
  });
}
