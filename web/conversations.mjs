/// <reference path="./vendor.d.ts" />
/**
 * The conversations that this browser keeps, in IndexedDB. Text only: keys and values are computed
 * again. Each message is a row of its own, and a conversation's row changes field by field within a
 * transaction, so that two tabs in one conversation lose nothing of each other.
 */

import { openDB } from "./vendor/idb.js";

/** @param {import("./attached.mjs").Attachment} file */
const nameOf = ({ name }) => name;

/**
 * @typedef {import("./branches.mjs").Message} Message
 *
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title
 * @property {number} created milliseconds since 1970
 * @property {number} updated the same, of the last message
 * @property {string | null} head the message at which the path shown last ends
 *
 * @typedef {{conversation: Conversation, messages: Message[]}} Whole
 * @typedef {(conversations: any, messages: any, sent: (request: Promise<unknown>) => void) =>
 *   Promise<void>} Work within a transaction; requests that it does not wait for are `sent`
 */

const NAME = "octavo-conversations";
const VERSION = 1;
const BOTH = ["conversations", "messages"];

export class Conversations {
  /** The database, once it is needed. @type {Promise<any> | null} */
  #opening = null;
  #channel = new BroadcastChannel(NAME);
  /** @type {(id: string) => void} */
  #changed;

  /** @param {(id: string, elsewhere: boolean) => void} changed is called after each change, in any tab */
  constructor(changed) {
    this.#changed = (id) => {
      this.#channel.postMessage(id);
      changed(id, false);
    };
    this.#channel.onmessage = ({ data }) => changed(data, true);
  }

  /** Rejects where storage is blocked; the next use tries again. @returns {Promise<any>} */
  #database() {
    const forget = () => void (this.#opening = null);
    this.#opening ??= this.#open(forget).catch((error) => {
      forget();
      throw error;
    });
    return this.#opening;
  }

  /**
   * @param {() => void} terminated is called when the visitor has cleared what the browser keeps
   * @returns {Promise<any>}
   */
  async #open(terminated) {
    return openDB(NAME, VERSION, {
      upgrade(db) {
        db.createObjectStore("conversations", { keyPath: "id" }).createIndex("updated", "updated");
        db.createObjectStore("messages", { keyPath: "id" })
          .createIndex("conversation", "conversation");
      },
      terminated,
      blocking: async () => (await this.#opening)?.close(), // another tab has a newer page
    });
  }

  /**
   * The newest first; with a text, only those whose title or messages have it.
   *
   * @param {string} [text]
   * @returns {Promise<Conversation[]>}
   */
  async list(text = "") {
    const db = await this.#database();
    /** @type {Conversation[]} */
    const all = (await db.getAllFromIndex("conversations", "updated")).reverse();
    const wanted = text.trim().toLowerCase();
    if (!wanted) return all;
    const has = (/** @type {string} */ other) => other.toLowerCase().includes(wanted);
    const found = new Set();
    for (const { conversation, content, files = [] } of await db.getAll("messages")) {
      if ([content, ...files.map(nameOf)].some(has)) found.add(conversation);
    }
    return all.filter(({ id, title }) => has(title) || found.has(id));
  }

  /**
   * A conversation and its messages, the oldest first.
   *
   * @param {string} id
   * @returns {Promise<Whole | undefined>}
   */
  async read(id) {
    const transaction = (await this.#database()).transaction(BOTH);
    const conversation = await transaction.objectStore("conversations").get(id);
    if (!conversation) return undefined;
    /** @type {Message[]} */
    const messages = await transaction.objectStore("messages").index("conversation").getAll(id);
    return { conversation, messages: messages.sort((a, b) => a.created - b.created) };
  }

  /** @returns {Promise<Whole[]>} the newest first */
  async readAll() {
    const found = await Promise.all((await this.list()).map(({ id }) => this.read(id)));
    return found.filter((whole) => whole !== undefined);
  }

  /**
   * Adds conversations with their messages: new ones, imported ones, or deleted ones again.
   *
   * @param {Whole[]} wholes
   */
  async add(wholes) {
    await this.#write(async (conversations, messages, sent) => {
      for (const whole of wholes) {
        sent(conversations.put(whole.conversation));
        for (const message of whole.messages) sent(messages.put(message));
      }
    });
    for (const { conversation } of wholes) this.#changed(conversation.id);
  }

  /**
   * Writes a message; the path leads to it. Nothing happens if its conversation is gone.
   *
   * @param {Message} message
   */
  async write(message) {
    const { id, conversation } = message;
    await this.#change(conversation, { head: id, updated: Date.now() }, async (_, messages, sent) => {
      sent(messages.put(message));
    });
  }

  /**
   * @param {string} id
   * @param {Partial<Pick<Conversation, "title" | "head">>} fields
   */
  async patch(id, fields) {
    await this.#change(id, fields, async () => {});
  }

  /**
   * Takes back messages of a conversation, and the conversation if it has no others.
   *
   * @param {string} id
   * @param {Message[]} gone
   * @param {string | null} head
   */
  async withdraw(id, gone, head) {
    await this.#change(id, { head }, async (conversations, messages, sent) => {
      for (const message of gone) sent(messages.delete(message.id));
      if (!(await messages.index("conversation").count(id))) sent(conversations.delete(id));
    });
  }

  /**
   * @param {string} id
   * @returns {Promise<Whole | undefined>} what was deleted
   */
  async remove(id) {
    const whole = await this.read(id);
    await this.#write(async (conversations, messages, sent) => {
      sent(conversations.delete(id));
      for (const key of await messages.index("conversation").getAllKeys(id)) sent(messages.delete(key));
    });
    this.#changed(id);
    return whole;
  }

  /**
   * @param {string} id
   * @param {Partial<Conversation>} fields
   * @param {Work} more
   */
  async #change(id, fields, more) {
    let isThere = false;
    await this.#write(async (conversations, messages, sent) => {
      const conversation = await conversations.get(id);
      if (!conversation) return;
      isThere = true;
      sent(conversations.put({ ...conversation, ...fields }));
      await more(conversations, messages, sent);
    });
    if (isThere) this.#changed(id);
  }

  /**
   * All changes of one transaction, or none; rejects with what ended it.
   *
   * @param {Work} work
   */
  async #write(work) {
    const transaction = (await this.#database()).transaction(BOTH, "readwrite");
    const [conversations, messages] = BOTH.map((name) => transaction.objectStore(name));
    /** @type {any[]} */
    const reasons = [];
    const note = (/** @type {Promise<unknown>} */ part) => part.catch((error) => void reasons.push(error));
    await Promise.all([note(transaction.done), note(work(conversations, messages, note))]);
    // the one that failed ends the others, which say no more than that
    if (reasons.length) throw reasons.find(({ name }) => name !== "AbortError") ?? reasons[0];
  }
}
