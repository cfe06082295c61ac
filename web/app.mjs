/** The page: shows what the client reports and passes on what the visitor does. Only DOM here. */

import { announce } from "./announcer.mjs";
import { Octavo, OctavoError } from "./client.mjs";
import { MAX_FILES } from "./attached.mjs";
import { Attachments } from "./attachments.mjs";
import { Conversations } from "./conversations.mjs";
import { TokenCount } from "./count.mjs";
import { loadLocale, number, t } from "./locale.mjs";
import { ModelsDialog, rememberChoice, rememberedChoice } from "./models.mjs";
import * as notices from "./notices.mjs";
import { installOffline, keepStorage } from "./offline.mjs";
import { ProgressView } from "./progress.mjs";
import { Records } from "./records.mjs";
import { Searching } from "./searching.mjs";
import { Settings } from "./settings.mjs";
import { SettingsDialog } from "./settings_dialog.mjs";
import { Sidebar } from "./sidebar.mjs";
import { StatsView } from "./stats.mjs";
import { showSuggestions } from "./suggestions.mjs";
import { showTheme } from "./theme.mjs";
import { notKept, Talk } from "./talk.mjs";
import { autosize, byId, byTestId, stickToBottom } from "./dom.mjs";

/**
 * @typedef {"loading" | "ready" | "searching" | "generating" | "error" | "stopped"} State
 * @typedef {import("./client.mjs").LoadResult} LoadResult
 */

const LONG = 2000; // characters of a question: whether it fits is found out before it is sent

const prompt = /** @type {HTMLTextAreaElement} */ (byTestId("prompt"));
const send = /** @type {HTMLButtonElement} */ (byTestId("send"));
const stop = byTestId("stop");
const status = byTestId("status");
const settings = new Settings();

const octavo = new Octavo({ ...settings.addressLoad, share: "site" });
Object.assign(window, { octavo });
const progress = new ProgressView(byTestId("progress"), octavo);
const stats = new StatsView();
const records = new Records();
const store = new Conversations((id, elsewhere) => {
  sidebar.refresh();
  if (elsewhere) talk.refresh(id).catch(showError);
});
const sidebar = new Sidebar(store, { open, removing, removed, fail: (error) => showError(notKept(error)) });
const talk = new Talk(octavo, store, settings, byId("log"), stickToBottom(byId("scroll")), {
  setState,
  showStats: (news) => stats.show(news),
  showError,
  hideError: notices.hideError,
  canSlide: () => loaded?.device.kind !== "remote",
  giveBack,
  records,
  gone: reset,
  opened: () => {
    sidebar.setCurrent(talk.id);
    update();
  },
});
const count = new TokenCount((text) => octavo.tokenize(text), () => talk.history, () => attachments.show());
const searching = new Searching({ octavo, settings, count, changed: () => attachments.show() });
const attachments = new Attachments(prompt, {
  tokens: (file) => count.of(file),
  changed: () => {
    if (attachments.files.length) searching.find();
    update();
  },
  canSearch: (file) => searching.canSearch(file),
  openSearch,
  fail: ({ key, file }) => showError(new OctavoError("attachment.refused", t(key, { name: file }))),
});

/** @type {State} */
let state = "loading";
/** The load under way, if any; whether it succeeded. */
let loading = Promise.resolve(false);
let sendWhenReady = false;
/** The question of which it is found out whether it fits, if any. @type {object | null} */
let checked = null;
/** The search for a question's passages under way, if any. @type {Promise<unknown>} */
let looking = Promise.resolve();
/** What was loaded last. @type {LoadResult | undefined} */
let loaded;
/** @type {import("./performance.mjs").PerformancePanel | undefined} */
let performancePanel;
/** The model to load. @type {import("./models.mjs").Choice} */
let choice = settings.address.model ? {} : rememberedChoice();
/** The one that is loaded. @type {import("./models.mjs").Choice | null} */
let used = null;

main();

async function main() {
  showTheme(String(settings.of("page").theme ?? "auto"));
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
    // what Escape closes, or clears
    const isElsewhere = document.querySelector("dialog:modal, :popover-open, [type=search]:focus:not(:placeholder-shown)");
    if (key === "Escape" && ["generating", "searching"].includes(state) && !isElsewhere) stopAll();
  });
  byTestId("performance").addEventListener("click", togglePerformance);
  stop.addEventListener("click", () => {
    stopAll();
    focusPrompt();
  });
  byId("cancel-load").addEventListener("click", stopAll);
  byTestId("reset").addEventListener("click", reset);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address stays as it is
    prompt.focus();
  });
  byId("dismiss").addEventListener("click", () => {
    notices.hideError();
    focusPrompt();
  });
  byId("notice-dismiss").addEventListener("click", () => {
    notices.hideNotice();
    focusPrompt();
  });
  byId("retry").addEventListener("click", load);
  byId("unkept").addEventListener("click", () => choose({ ...choice, keep: false }));
}

/** Whatever is under way. */
function stopAll() {
  searching.stop();
  return octavo.stop();
}

/** The panel is fetched when it is opened for the first time. */
async function togglePerformance() {
  const { PerformancePanel } = await import("./performance.mjs");
  performancePanel ??= new PerformancePanel({ octavo, records, settings, inspect });
  await performancePanel.toggle();
}

/** Where typing needs no on-screen keyboard, which would hide the answer. */
function focusPrompt() {
  if (!matchMedia("(pointer: coarse)").matches) prompt.focus();
}

/** @param {State} next */
function setState(next) {
  state = next;
  if (next === "generating") announce(t("say_generating"));
  if (next === "ready" && sendWhenReady) submit();
  else update();
  // a button that did its work has gone, and the focus with it
  if (next !== "ready" && document.activeElement === document.body) focusPrompt();
}

/** Brings everything that depends on the state up to date. */
function update() {
  const canSend = state === "ready" || state === "stopped";
  if (!prompt.value.trim() && !attachments.files.length) sendWhenReady = false;
  const whole = attachments.files.filter(({ searched }) => !searched);
  if (canSend) count.show({ content: prompt.value, files: whole });
  status.textContent = t(`state_${state}`);
  status.dataset.state = state;
  send.disabled = !canSend;
  const isBusy = state === "generating" || state === "searching";
  send.hidden = isBusy;
  stop.hidden = !isBusy;
  prompt.readOnly = state === "searching" || checked !== null;
  if (sendWhenReady && byId("queued").hidden) announce(t("queued"));
  byId("queued").hidden = !sendWhenReady;
  byId("welcome").hidden = !talk.isEmpty;
  talk.enable({ ask: canSend, browse: !isBusy });
}

async function showLanguage() {
  await loadLocale(String(settings.of("page").language ?? ""));
  showSuggestions((text) => {
    prompt.value = text;
    submit();
  });
  if (loaded) showLoaded(loaded);
  update();
}

/** @param {Set<import("./settings.mjs").Group>} changed */
async function applySettings(changed) {
  if (changed.has("page")) {
    showTheme(String(settings.of("page").theme ?? "auto"));
    await showLanguage();
    talk.show();
    sidebar.refresh();
  }
  if (changed.has("load")) await choose(used ?? choice);
}

/**
 * Loads a model, now and on later visits, unless it is a file that is not kept.
 *
 * @param {import("./models.mjs").Choice} wanted
 */
async function choose(wanted) {
  const mine = (choice = { ...wanted });
  if (["loading", "searching", "generating"].includes(state)) await stopAll().catch(() => {}); // it has crashed
  await Promise.all([loading, looking, talk.answering]);
  if (mine !== choice) return; // yet another one was chosen
  if ((await load()) && typeof wanted.model === "string") rememberChoice(wanted.model);
}

function load() {
  loading = loadChoice();
  return loading;
}

async function loadChoice() {
  notices.hideError();
  progress.start();
  announce(t("progress"));
  setState("loading");
  const mine = choice;
  try {
    const wanted = { ...settings.load, ...mine };
    loaded = await octavo.load(wanted, (event) => progress.show(event));
    used = mine;
    talk.forgetUnfinished();
    showLoaded(loaded);
    announce(t("say_ready"));
    setState("ready");
    return true;
  } catch (error) {
    const left = used && (await octavo.status().catch(() => null))?.models;
    if (mine !== choice) return false; // it was stopped for another one
    if (left?.length) sendWhenReady = false; // what is there still was not meant
    else {
      used = null;
      talk.forgetUnfinished();
    }
    setState(used ? "ready" : "error");
    showError(error, true);
    return false;
  } finally {
    progress.end();
  }
}

/** @param {LoadResult} result */
function showLoaded({ device, model, memory_bytes, kept, not_kept }) {
  byId("model").textContent = model.name;
  byId("model").ariaLabel = t("model_open", { name: model.name });
  showDevice(device);
  if (not_kept) notices.showNotice(not_kept);
  if (kept) keepStorage();
  stats.show({ memory_bytes, context: model.context || undefined });
  settings.recommended = model.sampling;
  records.changed();
  count.setModel(model.context);
}

/**
 * One line while a lost GPU, or the tab that had the engine, is replaced; the device afterwards.
 *
 * @param {import("../worker/protocol.mjs").Recovery} recovery
 */
async function showRecovery({ state: step, device, error }) {
  if (step === "ready" && device) return showDevice(device);
  if (step === "failed") {
    await talk.answering; // it fails for the same reason
    notices.showNotice("");
    setState("error");
    return showError(new OctavoError(error?.code ?? "internal", error?.message ?? "", error?.hint), true);
  }
  if (step === "moved") talk.forgetUnfinished();
  notices.showNotice(t(`recovery_${step}`), step);
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
  notices.showNotice(kind === "cpu" || kind === "remote" ? (device.reason ?? "") : "");
}

/** Sends what the prompt box holds, or once the model is ready. */
async function submit() {
  const text = prompt.value.trim();
  const { files } = attachments;
  const isBusy = checked || state === "searching" || state === "generating" || state === "error";
  if (isBusy || (!text && !files.length)) return;
  sendWhenReady = state === "loading";
  if (sendWhenReady) return update();
  const isSearch = files.some(({ searched }) => searched);
  const given = isSearch ? await passagesFor(text, files) : files;
  if (!given) return;
  if (!isSearch && (files.length || text.length > LONG) && !(await fits(text, files))) return;
  prompt.value = "";
  attachments.set([]);
  prompt.dispatchEvent(new Event("input"));
  focusPrompt();
  talk.ask(text, given);
}

/**
 * The files of a question, with passages in place of those to search in; null if there are none.
 *
 * @param {string} text
 * @param {import("./attached.mjs").Attachment[]} files
 */
async function passagesFor(text, files) {
  notices.hideError();
  setState("searching");
  progress.start();
  const found = searching.filesFor(text, files, (event) => progress.show(event)).catch((error) => {
    if (error.code !== "request.cancelled") showError(error);
    return null;
  });
  looking = found;
  const given = await found;
  progress.end();
  setState("ready");
  return given;
}

/**
 * Shows the best passages, without a question to the model.
 *
 * @param {import("./attached.mjs").Attachment[]} files
 */
async function openSearch(files) {
  try {
    await searching.open(files, prompt.value.trim(), (passage) => attachments.put(passage));
  } catch (error) {
    showError(error);
  }
  if (document.activeElement === document.body) focusPrompt(); // what opened it may be gone
}

/**
 * Whether a question fits into the context; if not, says so. The rest is found out by the engine.
 *
 * @param {string} content
 * @param {import("./attached.mjs").Attachment[]} files
 */
async function fits(content, files) {
  const mine = (checked = {});
  prompt.readOnly = true;
  const counted = await count.count({ content, files }).catch(() => null);
  if (mine !== checked) return false; // another conversation is open
  checked = null;
  prompt.readOnly = false;
  if (state !== "ready" && state !== "stopped") return false; // something else has begun
  if (!counted || talk.slides || counted.tokens < counted.context) return true;
  const values = { tokens: number(counted.tokens), context: number(counted.context) };
  const hint = t(files.some((file) => searching.canSearch(file)) ? "too_long_search" : "too_long_hint");
  showError(new OctavoError("prompt.too_long", t("too_long", values), hint));
  return false;
}

/** Puts it before what has been written since. @param {import("./branches.mjs").Message} question that was not answered */
function giveBack({ content, files = [] }) {
  prompt.value = [content, prompt.value].filter(Boolean).join("\n\n");
  attachments.set([...files, ...attachments.files].slice(0, MAX_FILES));
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

/** What there is of its answer can be had back, too. @param {string} id of a conversation */
async function removing(id) {
  if (id === talk.id && talk.isAnswering) await Promise.all([octavo.stop(), talk.answering]);
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
  notices.hideError();
  searching.stop();
  checked = null;
  focusPrompt();
  update();
  if (state === "loading" || state === "error") return;
  try {
    await Promise.all([end(), looking, talk.answering]);
    if (!talk.isAnswering) setState("ready"); // else the visitor was quick to ask again
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
  records.fail(notices.showError(error, canRetry));
}
