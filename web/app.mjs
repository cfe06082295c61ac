/** The page: shows what the client reports and passes on what the visitor does. Only DOM here. */

import { Octavo, OctavoError } from "./client.mjs";
import { Conversations } from "./conversations.mjs";
import { loadLocale, list, t } from "./locale.mjs";
import { ModelsDialog } from "./models.mjs";
import { installOffline, keepStorage } from "./offline.mjs";
import { ProgressView } from "./progress.mjs";
import { Settings } from "./settings.mjs";
import { SettingsDialog } from "./settings_dialog.mjs";
import { Sidebar } from "./sidebar.mjs";
import { StatsView } from "./stats.mjs";
import { notKept, Talk } from "./talk.mjs";
import { autosize, byId, byTestId, element, stickToBottom } from "./dom.mjs";

/**
 * @typedef {"loading" | "ready" | "generating" | "error" | "stopped"} State
 * @typedef {import("./client.mjs").LoadResult} LoadResult
 */

const MODEL_KEY = "octavo-model";

const prompt = /** @type {HTMLTextAreaElement} */ (byTestId("prompt"));
const send = /** @type {HTMLButtonElement} */ (byTestId("send"));
const stop = byTestId("stop");
const status = byTestId("status");
const errorArea = byTestId("error");
const settings = new Settings();

const octavo = new Octavo(settings.addressLoad);
Object.assign(window, { octavo });
const progress = new ProgressView(byTestId("progress"), octavo);
const stats = new StatsView();
const store = new Conversations((id, elsewhere) => {
  sidebar.refresh();
  if (elsewhere) talk.refresh(id).catch(showError);
});
const sidebar = new Sidebar(store, { open, removed, fail: (error) => showError(notKept(error)) });
const talk = new Talk(octavo, store, settings, byId("log"), stickToBottom(byId("scroll")), {
  setState,
  showStats: (news) => stats.show(news),
  showError,
  hideError: () => (errorArea.hidden = true),
  giveBack,
  opened: () => {
    sidebar.setCurrent(talk.id);
    update();
  },
});

/** @type {State} */
let state = "loading";
/** The load under way, if any. */
let loading = Promise.resolve();
let sendWhenReady = false;
/** What was loaded last. @type {LoadResult | undefined} */
let loaded;
/** The model to load. @type {import("./models.mjs").Choice} */
let choice = settings.address.model ? {} : rememberedChoice();

main();

async function main() {
  showTheme();
  await showLanguage();
  addEventListener("unhandledrejection", ({ reason }) => showError(reason));
  connect();
  octavo.addEventListener("recovery", (event) => {
    showRecovery(/** @type {CustomEvent<import("../worker/protocol.mjs").Recovery>} */ (event).detail);
  });
  new ModelsDialog(octavo, choose, showError);
  new SettingsDialog(settings, applySettings);
  sidebar.refresh();
  talk.resume().catch(showError);
  await load();
  await installOffline();
}

function connect() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("keydown", (event) => {
    // Enter also ends the composition of a character in many languages: that is no sending
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("input", update);
  autosize(prompt);
  addEventListener("keydown", ({ key }) => {
    const isElsewhere = document.querySelector("dialog[open], :popover-open"); // closed by Escape
    if (key === "Escape" && state === "generating" && !isElsewhere) octavo.stop();
  });
  stop.addEventListener("click", () => {
    octavo.stop();
    focusPrompt();
  });
  byId("cancel-load").addEventListener("click", () => octavo.stop());
  byTestId("reset").addEventListener("click", reset);
  byId("dismiss").addEventListener("click", () => {
    errorArea.hidden = true;
    focusPrompt();
  });
  byId("retry").addEventListener("click", load);
  byTestId("inspect").addEventListener("click", inspect);
  byId("unkept").addEventListener("click", () => choose({ ...choice, keep: false }));
}

/** Where typing needs no on-screen keyboard, which would hide the answer. */
function focusPrompt() {
  if (!matchMedia("(pointer: coarse)").matches) prompt.focus();
}

/** @param {State} next */
function setState(next) {
  state = next;
  if (next === "ready" && sendWhenReady) submit();
  else update();
}

/** Brings everything that depends on the state up to date. */
function update() {
  const canSend = state === "ready" || state === "stopped";
  if (!prompt.value.trim()) sendWhenReady = false;
  const text = t(`state_${state}`);
  if (status.textContent !== text) status.textContent = text; // each change is read aloud
  status.dataset.state = state;
  send.disabled = !canSend;
  send.hidden = state === "generating";
  stop.hidden = state !== "generating";
  byId("queued").hidden = !sendWhenReady;
  byId("welcome").hidden = !talk.isEmpty;
  talk.enable({ ask: canSend, browse: state !== "generating" });
}

function showTheme() {
  document.documentElement.dataset.theme = String(settings.of("page").theme ?? "auto");
}

async function showLanguage() {
  await loadLocale(String(settings.of("page").language ?? ""));
  showSuggestions();
  if (loaded) showLoaded(loaded);
  update();
}

/** @param {Set<import("./settings.mjs").Group>} changed */
async function applySettings(changed) {
  if (changed.has("page")) {
    showTheme();
    await showLanguage();
    talk.show();
    sidebar.refresh();
  }
  if (changed.has("load")) await choose(choice);
}

/** @returns {import("./models.mjs").Choice} what was chosen on the last visit */
function rememberedChoice() {
  try {
    return { model: localStorage.getItem(MODEL_KEY) || undefined };
  } catch {
    return {}; // storage is blocked
  }
}

/**
 * Loads a model, now and on later visits, unless it is a file that is not kept.
 *
 * @param {import("./models.mjs").Choice} wanted
 */
async function choose(wanted) {
  choice = wanted;
  if (state === "loading" || state === "generating") await octavo.stop();
  await Promise.all([loading, talk.answering]);
  await load();
  if (state !== "ready" || typeof wanted.model !== "string") return;
  try {
    localStorage.setItem(MODEL_KEY, wanted.model);
  } catch {
    // storage is blocked
  }
}

function load() {
  loading = loadChoice();
  return loading;
}

async function loadChoice() {
  errorArea.hidden = true;
  talk.forgetUnfinished();
  progress.start();
  setState("loading");
  try {
    const wanted = { ...settings.of("load"), ...choice };
    loaded = await octavo.load(wanted, (event) => progress.show(event));
    showLoaded(loaded);
    setState("ready");
  } catch (error) {
    setState("error");
    showError(error, true);
  } finally {
    progress.end();
  }
}

/** @param {LoadResult} result */
function showLoaded({ device, model, memory_bytes, kept, not_kept }) {
  byId("model").textContent = model.name;
  showDevice(device);
  if (not_kept) {
    byId("notice").textContent = not_kept;
    byId("notice").hidden = false;
  }
  if (kept) keepStorage();
  stats.show({ memory_bytes, context: model.context || undefined });
  settings.recommended = model.sampling;
}

/**
 * One line while a lost GPU is replaced; the device afterwards.
 *
 * @param {import("../worker/protocol.mjs").Recovery} recovery
 */
function showRecovery({ state: step, device }) {
  const notice = byId("notice");
  if (step === "ready" && device) return showDevice(device);
  notice.textContent = t(`recovery_${step}`);
  notice.dataset.recovery = step;
  notice.hidden = false;
}

/** @param {LoadResult["device"]} device */
function showDevice(device) {
  const local = device.kind === "cpu" ? "cpu" : device.software ? "software" : "gpu";
  const kind = device.kind === "remote" ? "remote" : local;
  const badge = byId("device");
  badge.textContent = t(`device_${kind}`);
  badge.title = device.name;
  badge.dataset.kind = kind;
  badge.hidden = false;
  const notice = byId("notice");
  const { reason = "" } = device;
  const notices = { cpu: reason || t("notice_cpu"), remote: reason, gpu: "", software: "" };
  notice.textContent = notices[kind];
  notice.hidden = !notice.textContent;
  delete notice.dataset.recovery;
}

function showSuggestions() {
  byId("suggestions").replaceChildren();
  for (const text of list("suggestions")) {
    const button = element("button", "suggestion", text);
    button.setAttribute("type", "button");
    button.addEventListener("click", () => {
      prompt.value = text;
      submit();
    });
    const item = element("li");
    item.append(button);
    byId("suggestions").append(item);
  }
}

/** Sends what the prompt box holds, or once the model is ready. */
function submit() {
  const text = prompt.value.trim();
  if (!text || state === "generating" || state === "error") return;
  sendWhenReady = state === "loading";
  if (sendWhenReady) return update();
  prompt.value = "";
  prompt.dispatchEvent(new Event("input"));
  focusPrompt();
  talk.ask(text);
}

/** @param {string} question that was not answered */
function giveBack(question) {
  prompt.value ||= question;
  prompt.dispatchEvent(new Event("input"));
}

/** What only developers want is loaded when they want it. */
async function inspect() {
  const { openInspection } = await import("./inspect.mjs");
  await openInspection(octavo, () => talk.messages);
}

/** Starts a new conversation; what is left of the old one is stopped first. */
async function reset() {
  talk.reset();
  await leave(() => octavo.reset());
}

/** @param {string} id of a kept conversation */
async function open(id) {
  if (id === talk.id) return focusPrompt();
  if (await talk.open(id)) await leave(() => state === "generating" && octavo.stop());
}

/** @param {string} id of a conversation that was deleted */
function removed(id) {
  if (id === talk.id) reset();
}

/**
 * Another conversation is open now: ends what the old one was doing.
 *
 * @param {() => unknown} end
 */
async function leave(end) {
  errorArea.hidden = true;
  focusPrompt();
  update();
  if (state === "loading" || state === "error") return;
  try {
    await Promise.all([end(), talk.answering]);
    setState("ready");
  } catch (error) {
    setState("error");
    showError(error, true);
  }
}

/**
 * @param {unknown} error
 * @param {boolean} [canRetry]
 */
function showError(error, canRetry = false) {
  const { code, message, hint } = error instanceof OctavoError
    ? error
    : { code: "internal", message: String(error), hint: "" };
  errorArea.dataset.code = code;
  byId("error-message").textContent = message;
  byId("error-hint").textContent = hint;
  byId("error-hint").hidden = !hint;
  byId("error-code").textContent = code;
  byId("retry").hidden = !canRetry;
  byId("unkept").hidden = code !== "shard.quota";
  errorArea.hidden = false;
}
