/** The page's strings, in the visitor's language if there is a file for it. */

const AVAILABLE = ["en", "zh"];

/** @type {Record<string, any>} */
let strings = {};
let language = "en";

/**
 * Loads the strings and fills in every element that names one.
 *
 * @param {string} [chosen] language; that of the browser if it is none of the available ones
 */
export async function loadLocale(chosen = "") {
  const tags = [chosen, ...navigator.languages];
  const wanted = tags.map((tag) => tag.toLowerCase().split("-")[0]);
  language = wanted.find((tag) => AVAILABLE.includes(tag)) ?? "en";
  const response = await fetch(new URL(`./locales/${language}.json`, import.meta.url));
  strings = await response.json();
  document.documentElement.lang = language;
  fill("i18n", (element, text) => (element.textContent = text));
  fill("i18nLabel", (element, text) => {
    element.setAttribute("aria-label", text);
    if (element instanceof HTMLButtonElement) element.title = text;
  });
  fill("i18nPlaceholder", (element, text) => element.setAttribute("placeholder", text));
}

/**
 * The string named `key`; {names} in it are replaced by `values`.
 *
 * @param {string} key
 * @param {Record<string, string>} [values]
 * @returns {string}
 */
export function t(key, values = {}) {
  const text = String(strings[key] ?? key);
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/**
 * @param {string} key
 * @returns {string[]}
 */
export function list(key) {
  return strings[key] ?? [];
}

/**
 * @param {number} value
 * @param {Intl.NumberFormatOptions} [options]
 */
export function number(value, options) {
  return new Intl.NumberFormat(language, options).format(value);
}

/**
 * @param {string} name of the data attribute, in camel case
 * @param {(element: HTMLElement, text: string) => void} apply
 */
function fill(name, apply) {
  const attribute = `data-${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  for (const element of document.querySelectorAll(`[${attribute}]`)) {
    if (element instanceof HTMLElement) apply(element, t(element.dataset[name] ?? ""));
  }
}
