/** What can be scrolled sideways can be reached by keyboard, and nothing else of the kind is a stop. */

const AREAS = "pre, div:has(> table)";

const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) markScrollable(/** @type {HTMLElement} */ (target));
});

/** @param {HTMLElement} answer whose areas are kept up to date while its size changes */
export function watchScrollable(answer) {
  observer.observe(answer);
}

/** @param {HTMLElement} answer that is not being written any more, or nothing is done */
export function markScrollable(answer) {
  if (answer.ariaBusy === "true") return;
  for (const area of /** @type {NodeListOf<HTMLElement>} */ (answer.querySelectorAll(AREAS))) {
    if (area.scrollWidth > area.clientWidth) area.tabIndex = 0;
    else area.removeAttribute("tabindex");
  }
}
