/** The open conversation: asks the model, keeps what is said, and moves between branches. */

import { announce, beginning } from "./announcer.mjs";
import { prompted } from "./attached.mjs";
import { Branches, newId } from "./branches.mjs";
import { OctavoError } from "./client.mjs";
import { t } from "./locale.mjs";
import { titleOf } from "./exchange.mjs";
import { hold, isHeld } from "./held.mjs";
import { receive } from "./receiving.mjs";
import { remember, remembered } from "./remembered.mjs";
import { Transcript } from "./transcript.mjs";

/**
 * @typedef {import("./branches.mjs").Message} Message
 * @typedef {import("./attached.mjs").Attachment} Attachment
 * @typedef {import("./client.mjs").ChatCompletionChunk} Chunk
 * @typedef {import("./transcript.mjs").ReplyView} ReplyView
 *
 * @typedef {{branches: Branches, isKept: boolean}} Open a new one is kept from its first question on
 * @typedef {{role: string, content: string, reasoning_content?: string}} Told
 * @typedef {{messages: Told[], continue_final_message?: boolean} | {continues: number}} From
 *
 * @typedef {object} Host what the page around it does
 * @property {(state: "generating" | "ready" | "stopped" | "error") => void} setState
 * @property {(news: import("./stats.mjs").News) => void} showStats
 * @property {(error: unknown, canRetry?: boolean) => void} showError
 * @property {() => void} hideError
 * @property {() => boolean} canSlide whether the loaded model can drop its oldest tokens
 * @property {(question: Message) => void} giveBack a question without any answer
 * @property {import("./records.mjs").Records} records
 * @property {() => void} gone the open conversation was deleted
 * @property {() => void} opened another conversation is open, or has been kept
 */

const OPEN_KEY = "octavo-conversation"; // of this tab
const AGAIN_TEMPERATURE = 0.7; // the likeliest answer again would be the same one
const SEEDS = 2 ** 32;
const LOST = ["internal", "gpu.lost", "engine.not_loaded"];

export class Talk {
  #octavo;
  #store;
  #settings;
  #host;
  #transcript;
  /** @type {Open} */
  #open = startOpen();
  /** The conversation that is being read, to be opened. @type {object | null} */
  #opening = null;
  /** By which the engine knows an answer that can go on. @type {{id: string, handle: number} | null} */
  #unfinished = null;
  /** Once the context was full and the visitor went on, it slides. */
  #slides = false;
  #isAnswering = false;
  #isStale = false;
  /** The answer being generated, if any. */
  answering = Promise.resolve();

  /**
   * @param {import("./client.mjs").Octavo} octavo
   * @param {import("./conversations.mjs").Conversations} store
   * @param {import("./settings.mjs").Settings} settings
   * @param {HTMLElement} log
   * @param {(force?: boolean) => void} follow
   * @param {Host} host
   */
  constructor(octavo, store, settings, log, follow, host) {
    this.#octavo = octavo;
    this.#store = store;
    this.#settings = settings;
    this.#host = host;
    this.#transcript = new Transcript(log, follow, {
      edit: ({ parent }, text, files) => this.#start(() => this.#ask(text, files, parent)),
      regenerate: (message) => this.#start(() => this.#regenerate(message)),
      goOn: ({ id }) => this.#start(() => this.#goOn(id)),
      switchTo: (id) => this.#switchTo(id),
    });
  }

  /** Of the open conversation, if it is kept. */
  get id() {
    return this.#open.isKept ? this.#open.branches.conversation : null;
  }

  /** Whether the open conversation is being answered. */
  get isAnswering() {
    return this.#isAnswering;
  }

  get isEmpty() {
    return this.#open.branches.head === null;
  }

  /**
   * A question without an answer, because a tab was closed or another one is at it, stays a branch.
   *
   * @param {string} question
   * @param {Attachment[]} files
   */
  ask(question, files) {
    const { branches } = this.#open;
    const last = branches.get(branches.head);
    const parent = last?.role === "user" ? last.parent : branches.head;
    this.#start(() => this.#ask(question, files, parent));
  }

  /** What comes before the next question. @returns {import("./count.mjs").History} */
  get history() {
    const { path } = this.#open.branches;
    const counted = path.findLastIndex(({ tokens }) => tokens !== undefined);
    const rest = path.slice(counted + 1).map(prompted);
    if (counted < 0) rest.unshift(String(this.#settings.of("answer").system ?? ""));
    return { tokens: path[counted]?.tokens ?? 0, text: rest.join("\n") };
  }

  /** Whether older messages are left out once the context is full. */
  get slides() {
    return this.#slides || this.#settings.of("answer").context_full === "slide";
  }

  /** @param {{ask: boolean, browse: boolean}} can */
  enable(can) {
    this.#transcript.enable(can);
  }

  /** The engine does not know the answer any more: its model is gone. */
  forgetUnfinished() {
    this.#unfinished = null;
  }

  /**
   * Shows everything again, in another language perhaps.
   *
   * @param {number} [same] messages at the beginning that are shown already, as they are
   */
  show(same = 0) {
    if (!this.#isAnswering) this.#transcript.show(this.#open.branches, same);
  }

  /** Opens a new conversation. */
  reset() {
    this.#enter(startOpen());
  }

  /** Opens the conversation that this tab had open, if it is still there. */
  async resume() {
    const id = remembered("sessionStorage", OPEN_KEY);
    if (id) await this.open(id);
  }

  /**
   * What another conversation was being answered goes on in it until it is stopped.
   *
   * @param {string} id
   * @returns {Promise<boolean>} whether it is there, and nothing else has been opened meanwhile
   */
  async open(id) {
    const mine = (this.#opening = {});
    const whole = await this.#store.read(id);
    if (!whole || mine !== this.#opening) return false;
    const branches = new Branches(id, whole.messages, whole.conversation.head);
    this.#enter({ branches, isKept: true });
    return true;
  }

  /**
   * A conversation has changed meanwhile: if it is the open one, shows what is there now.
   *
   * @param {string} id
   */
  async refresh(id) {
    const open = this.#open;
    if (id !== this.id) return;
    const whole = await this.#store.read(id);
    if (open !== this.#open) return;
    this.#isStale = this.#isAnswering;
    if (!whole) return this.#host.gone();
    if (this.#isAnswering) return;
    const branches = new Branches(id, whole.messages, open.branches.head);
    if (JSON.stringify(branches) === JSON.stringify(open.branches)) return;
    const same = branches.alike(open.branches);
    const [{ length: before }, { length }] = [open.branches.path, branches.path];
    if (same < before) this.forgetUnfinished(); // it may have gone on there
    this.#open = { branches, isKept: true };
    // of a path that is shorter, the last message has become what it was not
    this.#shown(length < before ? Math.max(0, Math.min(same, length - 1)) : same);
  }

  /** @param {Open} open */
  #enter(open) {
    this.#open = open;
    this.#opening = null;
    this.#slides = false;
    this.forgetUnfinished();
    this.#isAnswering = false;
    this.#shown();
    this.#remember();
  }

  /** @param {number} [same] see show */
  #shown(same) {
    this.show(same);
    const tokens = this.#open.branches.path.findLast((message) => message.tokens)?.tokens;
    this.#host.showStats({ tokens: tokens ?? null });
    this.#host.opened();
  }

  #remember() {
    remember("sessionStorage", OPEN_KEY, this.id);
  }

  /** @param {() => Promise<void>} answer */
  #start(answer) {
    if (!this.#isAnswering) this.answering = answer();
  }

  /**
   * A question behind `parent`, and its answer.
   *
   * @param {string} text
   * @param {Attachment[]} files
   * @param {string | null} parent
   */
  async #ask(text, files, parent) {
    const before = this.#open.branches.head;
    const question = this.#open.branches.add("user", text, parent, files);
    this.#keepQuestion(question);
    await this.#answer(question, [question], before);
  }

  /** @param {Message} message */
  async #regenerate({ parent }) {
    const { branches } = this.#open;
    const question = /** @type {Message} */ (branches.get(parent));
    await this.#answer(question, [], branches.head);
  }

  /**
   * @param {Message} question
   * @param {Message[]} added that go again if there is no answer
   * @param {string | null} before the head until now
   */
  async #answer(question, added, before) {
    const { branches } = this.#open;
    const answer = branches.add("assistant", "", question.id);
    this.forgetUnfinished();
    this.#transcript.close();
    if (added[0]?.parent === before) {
      for (const message of [question, answer]) this.#transcript.append(message, branches);
    } else {
      this.#transcript.show(branches);
      this.#transcript.reply(answer.id).begin();
    }
    const messages = this.#told(branches.path.slice(0, -1));
    await this.#respond(answer, { messages }, [...added, answer], before);
  }

  /** The open conversation as the model gets it. */
  get messages() {
    return this.#told(this.#open.branches.path);
  }

  /** @param {Message[]} path */
  #told(path) {
    /** @type {Told[]} */
    const messages = path.map((message) => ({ role: message.role, content: prompted(message) }));
    const { system } = this.#settings.of("answer");
    if (system) messages.unshift({ role: "system", content: String(system) });
    return messages;
  }

  /** @param {string} id of the answer that was stopped or ended by its length */
  async #goOn(id) {
    if (await isHeld(id)) return this.#transcript.close(); // another tab is at it, and shows its end
    const answer = this.#open.branches.get(id);
    if (!answer || this.#open.branches.head !== id || this.#isAnswering) return;
    const from = this.#unfinished?.id === id ? { continues: this.#unfinished.handle } : this.#begun(answer);
    this.forgetUnfinished();
    this.#slides ||= answer.finish === "context.full";
    this.#transcript.reply(answer.id).begin();
    await this.#respond(answer, from, [], answer.id);
  }

  /**
   * Of an answer by another model or on an earlier visit there is only the text.
   *
   * @param {Message} answer the last one
   * @returns {From}
   */
  #begun({ reasoning }) {
    const messages = this.messages;
    const last = /** @type {Told} */ (messages.at(-1));
    if (reasoning) last.reasoning_content = reasoning;
    return { messages, continue_final_message: true };
  }

  /**
   * How to draw: another answer to the same question is drawn otherwise.
   *
   * @param {Message} answer
   * @returns {import("./client.mjs").CompletionOptions}
   */
  #sampling(answer) {
    const { system: _, ...sampling } = this.#settings.of("answer");
    const again = this.#open.branches.siblings(answer).indexOf(answer);
    if (again > 0) {
      sampling.seed = (Number(sampling.seed ?? 0) + again) % SEEDS;
      sampling.temperature ??= this.#settings.recommended.temperature ?? AGAIN_TEMPERATURE;
    }
    if (this.#slides && this.#host.canSlide()) sampling.context_full = "slide";
    return sampling;
  }

  /**
   * Shows and keeps an answer and its end. It never rejects: failures are shown.
   *
   * @param {Message} answer
   * @param {From} from
   * @param {Message[]} added
   * @param {string | null} before
   */
  async #respond(answer, from, added, before) {
    const open = this.#open;
    const reply = this.#transcript.reply(answer.id);
    this.#isAnswering = true;
    this.#host.hideError();
    this.#host.setState("generating");
    const { length } = reply.readable;
    const { content, reasoning, finish } = answer;
    const release = hold(answer.id);
    try {
      const last = await this.#stream(answer, reply, from);
      this.#finish(open, answer, last);
      if (open === this.#open) announceEnd(reply.readable.slice(length), answer.finish);
    } catch (error) {
      // where nothing has come, it ended as before
      if (answer.content === content && answer.reasoning === reasoning) answer.finish = finish;
      this.#fail(open, answer, error, added, before);
    } finally {
      release();
    }
    // another tab has changed it, or it was left and opened again before its answer had ended
    if (this.#isStale || open !== this.#open) await this.refresh(open.branches.conversation);
  }

  /**
   * @param {Message} answer
   * @param {ReplyView} reply
   * @param {From} from
   * @returns {Promise<Chunk>} the last chunk
   */
  #stream(answer, reply, from) {
    const request = { ...this.#sampling(answer), ...from, stream: /** @type {const} */ (true) };
    const record = this.#host.records.begin();
    const sent = performance.now();
    const chunks = this.#octavo.chat.completions.create(request);
    const { showStats } = this.#host;
    const keep = () => this.#keep(this.#store.write(answer));
    return receive(chunks, sent, answer, reply, { showStats, record, keep });
  }

  /**
   * @param {Open} open
   * @param {Message} answer
   * @param {Chunk} last
   */
  #finish(open, answer, last) {
    const { finish_reason } = last.choices[0];
    const { timing, handle, code } = last.octavo;
    if (finish_reason === "stop") delete answer.finish;
    else answer.finish = code ?? finish_reason ?? undefined;
    const tokens = last.usage?.total_tokens;
    if (tokens) answer.tokens = tokens;
    this.#keep(this.#store.write(answer));
    if (open !== this.#open) return;
    this.#isAnswering = false;
    if (answer.finish && handle !== undefined && hasText(answer)) {
      this.#unfinished = { id: answer.id, handle };
    }
    this.#transcript.end(answer, open.branches);
    const speed = { ttft_ms: timing?.ttft_ms, tokens_per_s: timing?.decode_tokens_per_s };
    this.#host.showStats({ ...speed, tokens: answer.tokens });
    this.#host.setState(finish_reason === "cancelled" ? "stopped" : "ready");
    const status = this.#octavo.status();
    status.then(({ memory_bytes }) => this.#host.showStats({ memory_bytes }), () => {});
  }

  /**
   * What has been answered stays; a question without any answer goes back into the prompt box.
   *
   * @param {Open} open
   * @param {Message} answer
   * @param {unknown} error
   * @param {Message[]} added
   * @param {string | null} before
   */
  #fail(open, answer, error, added, before) {
    const isShown = open === this.#open;
    if (isShown) this.#isAnswering = false;
    if (hasText(answer)) {
      this.#keep(this.#store.write(answer));
      if (isShown) this.#transcript.end(answer, open.branches);
    } else {
      open.branches.withdraw(added, before);
      if (open.branches.isEmpty) open.isKept = false;
      this.#keep(this.#store.withdraw(open.branches.conversation, added, before));
      if (isShown) {
        this.#remember();
        this.#shown();
        const question = added.find(({ role }) => role === "user");
        if (question) this.#host.giveBack(question);
      }
    }
    if (!isShown) return;
    const isLost = !(error instanceof OctavoError) || LOST.includes(error.code);
    this.#host.setState(isLost ? "error" : "ready");
    this.#host.showError(error, isLost);
  }

  /** @param {string} id */
  #switchTo(id) {
    this.#open.branches.switchTo(id);
    this.#shown();
    const { conversation, head } = this.#open.branches;
    this.#keep(this.#store.patch(conversation, { head }));
  }

  /** The first one makes a conversation of it. @param {Message} question */
  #keepQuestion(question) {
    if (this.#open.isKept) return this.#keep(this.#store.write(question));
    this.#open.isKept = true;
    const { conversation: id, id: head, created } = question;
    const conversation = { id, title: titleOf(question), created, updated: created, head };
    this.#keep(this.#store.add([{ conversation, messages: [question] }]));
    this.#remember();
    this.#host.opened();
  }

  /**
   * A conversation that cannot be kept goes on all the same.
   *
   * @param {Promise<void>} writing
   */
  #keep(writing) {
    writing.catch((error) => this.#host.showError(notKept(error)));
  }
}

/**
 * The error to show when the browser does not let conversations be kept.
 *
 * @param {any} error
 */
export function notKept(error) {
  const reason = error?.name === "QuotaExceededError" ? t("not_kept_full") : String(error?.message || error);
  const message = t("not_kept", { reason });
  return new OctavoError("conversation.not_kept", message);
}

/** @returns {Open} */
function startOpen() {
  return { branches: new Branches(newId()), isKept: false };
}

/**
 * @param {string} text what has come of the answer
 * @param {string | undefined} finish why it ended, if not by itself
 */
function announceEnd(text, finish) {
  announce([beginning(text), finish && t(`finish_${finish}`)].filter(Boolean).join(" "));
}

/** @param {Message} answer */
function hasText({ content, reasoning }) {
  return Boolean(content || reasoning);
}
