/** The page: shows what the client reports and passes on what the visitor does. Only DOM here. */

import { Octavo, OctavoError } from "./client.mjs";
import { loadLocale, list, number, t } from "./locale.mjs";
import { MarkdownView } from "./markdown.mjs";
import { ModelsDialog } from "./models.mjs";
import { installOffline, keepStorage } from "./offline.mjs";
import { ProgressView } from "./progress.mjs";
import { autosize, byId, byTestId, element, stickToBottom } from "./dom.mjs";

/**
 * @typedef {"loading" | "ready" | "generating" | "error" | "stopped"} State
 * @typedef {import("./client.mjs").ChatCompletionChunk} Chunk
 * @typedef {import("./client.mjs").LoadResult} LoadResult
 */

const STATS_INTERVAL_MS = 250;
const MODEL_KEY = "octavo-model";

const prompt = /** @type {HTMLTextAreaElement} */ (byTestId("prompt"));
const send = /** @type {HTMLButtonElement} */ (byTestId("send"));
const stop = byTestId("stop");
const status = byTestId("status");
const stats = byTestId("stats");
const errorArea = byTestId("error");
const log = byId("log");
const follow = stickToBottom(byId("scroll"));
const options = addressOptions();

const octavo = new Octavo(options.load);
Object.assign(window, { octavo });
const progress = new ProgressView(byTestId("progress"), octavo);

/** @type {State} */
let state = "loading";
/** @type {{role: string, content: string}[]} */
let messages = [];
/** Grows with each reset: an answer of an earlier conversation has nothing to show. */
let conversation = 0;
/** The answer being generated, if any. */
let answering = Promise.resolve();
/** The load under way, if any. */
let loading = Promise.resolve();
let sendWhenReady = false;
/** The model to load. @type {import("./models.mjs").Choice} */
let choice = options.load.model ? {} : rememberedChoice();

main();

async function main() {
  await loadLocale();
  addEventListener("unhandledrejection", ({ reason }) => showError(reason));
  connect();
  octavo.addEventListener("recovery", (event) => {
    showRecovery(/** @type {CustomEvent<import("../worker/protocol.mjs").Recovery>} */ (event).detail);
  });
  new ModelsDialog(octavo, choose, showError);
  showSuggestions();
  await load();
  await installOffline();
}

/** What the page's address asks for; numbers that are none are left out. */
function addressOptions() {
  const address = new URLSearchParams(location.search);
  const text = (/** @type {string} */ name) => address.get(name) || undefined;
  const numeric = (/** @type {string} */ name) => {
    const value = Number.parseFloat(address.get(name) ?? "");
    return Number.isFinite(value) ? value : undefined;
  };
  return {
    load: /** @type {import("./client.mjs").LoadOptions} */ (defined({
      model: text("model"),
      device: text("device"),
      context: numeric("context"),
      kv_tokens: numeric("kv_tokens"),
      kv_bytes: numeric("kv_bytes"),
      activations: text("activations"),
      remote: text("remote") && { url: text("remote") },
    })),
    generate: defined({
      temperature: numeric("temperature"),
      seed: numeric("seed"),
      max_tokens: numeric("max_tokens"),
      context_full: /** @type {"stop" | "slide" | undefined} */ (text("context_full")),
    }),
  };
}

/** @param {object} fields */
function defined(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
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
    if (key === "Escape" && state === "generating") octavo.stop();
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
  byId("welcome").hidden = messages.length > 0;
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
  await Promise.all([loading, answering]);
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
  progress.start();
  setState("loading");
  try {
    showLoaded(await octavo.load(choice, (event) => progress.show(event)));
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
  showStats({ memory_bytes });
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
  answering = answer(text);
}

/**
 * One turn of the conversation.
 *
 * @param {string} question
 */
async function answer(question) {
  log.querySelector("[data-testid=continue]")?.remove(); // only the last answer can go on
  const turn = showTurn(question);
  messages.push({ role: "user", content: question });
  await respond(turn, question, { messages });
}

/**
 * An answer that was stopped or ended by its length goes on.
 *
 * @param {Turn} turn
 * @param {number} continues
 */
async function goOn(turn, continues) {
  if (turn.full) options.generate.context_full = "slide";
  messages.pop(); // comes back with what is added to it
  turn.foot.replaceChildren();
  turn.answer.ariaBusy = "true";
  await respond(turn, "", { continues });
}

/**
 * Shows an answer and its end. It never rejects: failures are shown.
 *
 * @param {Turn} turn
 * @param {string} question
 * @param {From} from
 */
async function respond(turn, question, from) {
  const mine = conversation;
  errorArea.hidden = true;
  setState("generating");
  try {
    const last = await stream(turn, from);
    if (mine === conversation) finishTurn(turn, last);
  } catch (error) {
    if (mine === conversation) failTurn(turn, question, error);
  }
}

/** @typedef {{messages: typeof messages} | {continues: number}} From */

/**
 * Shows the answer as it comes.
 *
 * @param {Turn} turn
 * @param {From} from
 * @returns {Promise<Chunk>} the last chunk
 */
async function stream({ view, reasoning, thought }, from) {
  const request = { ...options.generate, ...from, stream: /** @type {const} */ (true) };
  const sent = performance.now();
  let first = 0;
  let shown = 0;
  /** @type {Chunk | undefined} */
  let last;
  for await (const chunk of octavo.chat.completions.create(request)) {
    last = chunk;
    const { content, reasoning_content } = chunk.choices[0].delta;
    if (content) view.append(content);
    if (reasoning_content) {
      thought.append(reasoning_content);
      reasoning.hidden = false;
      follow();
    }
    const { num_tokens } = chunk.octavo;
    const now = performance.now();
    if (num_tokens) first ||= now;
    if (first && now - Math.max(first, shown) > STATS_INTERVAL_MS) {
      shown = now;
      const tokens_per_s = ((num_tokens - 1) / (now - first)) * 1000;
      showStats({ ttft_ms: first - sent, tokens_per_s });
    }
  }
  return /** @type {Chunk} */ (last);
}

/**
 * @typedef {object} Turn
 * @property {HTMLElement[]} elements
 * @property {HTMLElement} reasoning hidden until there is some
 * @property {HTMLElement} thought the text in it
 * @property {HTMLElement} answer
 * @property {HTMLElement} foot
 * @property {MarkdownView} view
 * @property {boolean} [full] it ended because the context was full
 */

/**
 * @param {string} question
 * @returns {Turn}
 */
function showTurn(question) {
  const asked = element("article", "question");
  asked.append(element("span", "aside", t("you")), element("p", "text", question));
  const answered = element("article", "reply");
  const reasoning = element("details", "reasoning");
  reasoning.dataset.testid = "reasoning";
  reasoning.hidden = true;
  const thought = element("p", "text");
  reasoning.append(element("summary", "", t("reasoning")), thought);
  const answer = element("div", "answer");
  answer.dataset.testid = "answer";
  answer.ariaBusy = "true";
  const foot = element("p", "reply-foot");
  answered.append(element("span", "aside", t("assistant")), reasoning, answer, foot);
  log.append(asked, answered);
  follow(true);
  const view = new MarkdownView(answer, () => follow());
  return { elements: [asked, answered], reasoning, thought, answer, foot, view };
}

/**
 * @param {Turn} turn
 * @param {Chunk} last
 */
function finishTurn(turn, last) {
  const { finish_reason } = last.choices[0];
  const { timing, handle, code } = last.octavo;
  endTurn(turn);
  if (finish_reason !== "stop") {
    turn.foot.append(element("span", "finish", t(`finish_${code ?? finish_reason}`)));
    // Whoever goes on in a full context lets it slide, from now on.
    turn.full = code === "context.full";
    if (handle !== undefined && hasText(turn)) turn.foot.append(continueButton(turn, handle));
  }
  follow();
  if (timing) showStats({ ttft_ms: timing.ttft_ms, tokens_per_s: timing.decode_tokens_per_s });
  setState(finish_reason === "cancelled" ? "stopped" : "ready");
  octavo.status().then(showStats, () => {});
}

/**
 * What has been answered stays; a question without any answer goes back into the prompt box.
 *
 * @param {Turn} turn
 * @param {string} question
 * @param {unknown} error
 */
function failTurn(turn, question, error) {
  if (hasText(turn)) {
    endTurn(turn);
  } else {
    messages.pop();
    turn.elements.forEach((shown) => shown.remove());
    prompt.value ||= question;
    prompt.dispatchEvent(new Event("input"));
  }
  const lost = !(error instanceof OctavoError) || ["internal", "gpu.lost", "engine.not_loaded"]
    .includes(error.code);
  setState(lost ? "error" : "ready");
  showError(error, lost);
}

/** @param {Turn} turn */
function hasText({ view, thought }) {
  return Boolean(view.text || thought.textContent);
}

/**
 * The model gets to see its answers again, but not what it thought before them.
 *
 * @param {Turn} turn
 */
function endTurn({ view, answer, foot }) {
  view.finish();
  answer.ariaBusy = "false";
  messages.push({ role: "assistant", content: view.text });
  if (view.text) foot.append(copyButton(view.text));
}

/**
 * @param {Turn} turn
 * @param {number} handle
 */
function continueButton(turn, handle) {
  const button = element("button", "link", t("continue"));
  button.setAttribute("type", "button");
  button.dataset.testid = "continue";
  button.addEventListener("click", () => {
    if (state !== "generating") answering = goOn(turn, handle);
  });
  return button;
}

/** @param {string} text */
function copyButton(text) {
  const button = element("button", "link", t("copy"));
  button.setAttribute("type", "button");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = t("copy")), 1500);
  });
  return button;
}

/** Starts a new conversation; what is left of the old one is stopped first. */
async function reset() {
  conversation++;
  messages = [];
  log.replaceChildren();
  errorArea.hidden = true;
  focusPrompt();
  update();
  if (state === "loading" || state === "error") return;
  try {
    await Promise.all([octavo.reset(), answering]);
    setState("ready");
  } catch (error) {
    setState("error");
    showError(error, true);
  }
}

/** @type {{ttft_ms?: number, tokens_per_s?: number, memory_bytes?: number}} */
const known = {};

/** @param {typeof known} news */
function showStats({ ttft_ms, tokens_per_s, memory_bytes }) {
  Object.assign(known, defined({ ttft_ms, tokens_per_s, memory_bytes }));
  const { ttft_ms: ttft, tokens_per_s: speed, memory_bytes: memory } = known;
  const digits = (/** @type {number} */ n) => ({ maximumSignificantDigits: n });
  const parts = [];
  if (ttft !== undefined) {
    parts.push(t("stats_ttft", { seconds: number(ttft / 1000, digits(2)) }));
    stats.dataset.ttftMs = String(ttft);
  }
  if (speed !== undefined) {
    parts.push(t("stats_speed", { speed: number(speed, digits(3)) }));
    stats.dataset.tokensPerS = String(speed);
  }
  if (memory !== undefined) {
    parts.push(t("stats_memory", { megabytes: number(Math.round(memory / 1e6)) }));
    stats.dataset.memoryBytes = String(memory);
  }
  stats.textContent = parts.join(" · ");
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
