/** A menu by keyboard: arrows lead from entry to entry, Tab leaves it. */

/** @param {HTMLElement} menu a popover; its entries are buttons with the role menuitem */
export function asMenu(menu) {
  menu.addEventListener("keydown", (event) => {
    const entries = [...menu.querySelectorAll("button")];
    const at = entries.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 };
    if (event.key === "Tab") menu.hidePopover(); // gives the focus back first
    const to = steps[event.key];
    if (to === undefined) return;
    event.preventDefault();
    entries.at(to % entries.length)?.focus();
  });
}
