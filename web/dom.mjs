/** Small helpers for elements. */

import { t } from "./locale.mjs";

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * @param {string} name
 * @returns {HTMLElement}
 */
export function byTestId(name) {
  return /** @type {HTMLElement} */ (document.querySelector(`[data-testid="${name}"]`));
}

/**
 * Lets a text box grow with its text, where the style sheet alone cannot.
 *
 * @param {HTMLTextAreaElement} box
 */
export function autosize(box) {
  if (CSS.supports("field-sizing", "content")) return;
  box.addEventListener("input", () => {
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight}px`;
  });
}

/**
 * Keeps the end in sight while content grows, until the visitor scrolls up.
 *
 * @param {HTMLElement} area
 * @returns {(force?: boolean) => void} to be called after each change
 */
export function stickToBottom(area) {
  let stuck = true;
  let top = 0;
  const look = () => {
    const distance = area.scrollHeight - area.clientHeight - area.scrollTop;
    if (distance < 24) stuck = true;
    else if (area.scrollTop < top - 1) stuck = false;
    top = area.scrollTop;
  };
  area.addEventListener("scroll", look, { passive: true });
  return (force = false) => {
    if (stuck) look(); // the event of a scroll comes a frame later
    stuck ||= force;
    if (!stuck) return;
    area.scrollTop = area.scrollHeight;
    top = area.scrollTop;
  };
}

/**
 * @param {string} tag
 * @param {string} [className]
 * @param {string} [text]
 */
export function element(tag, className = "", text = "") {
  const created = document.createElement(tag);
  created.className = className;
  created.textContent = text;
  return created;
}

/**
 * A button that does something, and nothing more until that has ended.
 *
 * @param {string} className
 * @param {string} name of its string; with dashes, its test id
 * @param {() => unknown} action
 * @returns {HTMLButtonElement}
 */
export function button(className, name, action) {
  const created = document.createElement("button");
  let isBusy = false;
  created.type = "button";
  created.className = className;
  created.textContent = t(name);
  created.dataset.testid = name.replaceAll("_", "-");
  created.addEventListener("click", async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      await action();
    } finally {
      isBusy = false;
    }
  });
  return created;
}
