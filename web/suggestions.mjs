/** Questions to begin with. */

import { byId, element } from "./dom.mjs";
import { list } from "./locale.mjs";

/** @param {(text: string) => void} ask */
export function showSuggestions(ask) {
  byId("suggestions").replaceChildren();
  for (const text of list("suggestions")) {
    const button = element("button", "suggestion", text);
    button.setAttribute("type", "button");
    button.addEventListener("click", () => ask(text));
    const item = element("li");
    item.append(button);
    byId("suggestions").append(item);
  }
}
