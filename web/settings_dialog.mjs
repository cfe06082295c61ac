/** The dialog of settings: a field for each, saved together. */

import { byId, element } from "./dom.mjs";
import { number, t } from "./locale.mjs";
import { SETTINGS } from "./settings.mjs";

/**
 * @typedef {import("./settings.mjs").Setting} Setting
 * @typedef {import("./settings.mjs").Settings} Settings
 * @typedef {import("./settings.mjs").Group} Group
 * @typedef {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} Field
 */

/** @type {Group[]} */
const GROUPS = ["answer", "load", "page"];

export class SettingsDialog {
  #dialog = /** @type {HTMLDialogElement} */ (byId("settings"));
  #form = /** @type {HTMLFormElement} */ (byId("settings-form"));
  /** @type {Map<string, Field>} */
  #fields = new Map();
  #settings;
  #changed;

  /**
   * @param {Settings} settings
   * @param {(groups: Set<Group>) => void} changed is called with the groups that have changed
   */
  constructor(settings, changed) {
    this.#settings = settings;
    this.#changed = changed;
    byId("open-settings").addEventListener("click", () => this.#open());
    byId("settings-close").addEventListener("click", () => this.#dialog.close());
    byId("settings-reset").addEventListener("click", () => this.#fill({}));
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
  }

  #open() {
    this.#fields.clear();
    byId("settings-fields").replaceChildren(...GROUPS.map((group) => this.#group(group)));
    this.#fill(this.#settings.kept);
    this.#dialog.showModal();
  }

  /** @param {Group} group */
  #group(group) {
    const set = element("fieldset", "setting-group");
    set.append(element("legend", "", t(`group_${group}`)));
    for (const setting of SETTINGS) {
      if (setting.group === group) set.append(this.#row(setting));
    }
    return set;
  }

  /** @param {Setting} setting */
  #row(setting) {
    const { name, maxLength, kind } = setting;
    const row = element("div", maxLength && !kind ? "setting setting-long" : "setting");
    const label = element("label", "", t(`setting_${name}`));
    const field = fieldOf(setting, this.#settings.recommended);
    const hint = element("p", "hint", t(`hint_${name}`));
    field.className = "field";
    field.id = field.dataset.testid = `setting-${name.replaceAll("_", "-")}`;
    hint.id = `${field.id}-hint`;
    label.setAttribute("for", field.id);
    field.setAttribute("aria-describedby", hint.id);
    field.disabled = this.#settings.isFixed(name);
    if (field.disabled) hint.textContent = t("setting_fixed");
    this.#fields.set(name, field);
    row.append(label, field, hint);
    return row;
  }

  /** @param {import("./settings.mjs").Values} values */
  #fill(values) {
    for (const { name, choices, unit = 1 } of SETTINGS) {
      const field = /** @type {Field} */ (this.#fields.get(name));
      const value = (field.disabled ? this.#settings.address : values)[name] ?? choices?.[0] ?? "";
      field.value = String(typeof value === "number" ? value / unit : value);
    }
  }

  /** Fields that the address decides about keep what was set before. */
  #save() {
    const before = this.#settings.kept;
    const now = Object.fromEntries(SETTINGS.flatMap((setting) => {
      const { name } = setting;
      const field = /** @type {Field} */ (this.#fields.get(name));
      const value = field.disabled ? before[name] : valueOf(setting, field.value);
      return value === undefined ? [] : [[name, value]];
    }));
    const changed = SETTINGS.filter(({ name }) => now[name] !== before[name]);
    this.#settings.keep(now);
    this.#dialog.close();
    this.#changed(new Set(changed.map(({ group }) => group)));
  }
}

/**
 * @param {Setting} setting
 * @param {Record<string, number>} recommended
 * @returns {Field}
 */
function fieldOf({ name, choices, prefix, maxLength, kind, min, max, whole, neutral }, recommended) {
  if (choices) {
    const field = document.createElement("select");
    field.append(...choices.map((choice) => new Option(t(`${prefix}_${choice}`), choice)));
    return field;
  }
  if (kind) {
    const field = document.createElement("input");
    if (kind === "url") field.pattern = "https?://.+";
    return Object.assign(field, { type: kind, maxLength, autocomplete: "off" });
  }
  if (maxLength) {
    const field = document.createElement("textarea");
    field.rows = 3;
    field.maxLength = maxLength;
    return field;
  }
  const field = document.createElement("input");
  const shown = recommended[name] ?? neutral;
  Object.assign(field, { type: "number", min, max, step: whole ? "1" : "any" });
  field.placeholder = shown === undefined ? t("setting_auto") : number(shown, { useGrouping: false });
  return field;
}

/**
 * @param {Setting} setting
 * @param {string} text of its field
 * @returns {string | number | undefined} nothing for how things are by themselves
 */
function valueOf({ choices, maxLength, kind, unit = 1 }, text) {
  if (choices) return text === choices[0] ? undefined : text;
  if (!text.trim()) return undefined;
  if (kind) return text.trim();
  return maxLength ? text : Number(text) * unit;
}
