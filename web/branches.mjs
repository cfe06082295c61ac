/**
 * A conversation as a tree of messages: an edited question or a new answer is a branch beside the
 * old one. One path through the tree is shown; it ends at `head`.
 */

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} conversation id
 * @property {string | null} parent id of the message that it follows
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {import("./attached.mjs").Attachment[]} [files] that go along with a question
 * @property {number} created milliseconds since 1970; later ones in a conversation are greater
 * @property {string} [reasoning]
 * @property {number} [thought_ms] how long the reasoning took
 * @property {string} [finish] why the answer ended, if not by itself: a finish reason or a code
 * @property {number} [tokens] of the conversation with this answer
 */

export class Branches {
  /** Oldest first. @type {Map<string, Message>} */
  #messages = new Map();
  /** The same by what they follow. @type {Map<string | null, Message[]>} */
  #next = new Map();
  /** @type {string | null} */
  head = null;

  /**
   * @param {string} conversation id
   * @param {Message[]} [messages]
   * @param {string | null} [head] where the path ends; the newest message if it is none of these
   */
  constructor(conversation, messages = [], head = null) {
    this.conversation = conversation;
    const ordered = messages.toSorted((a, b) => a.created - b.created);
    for (const message of ordered) this.#put(message);
    this.head = this.#leaf(head && this.#messages.has(head) ? head : (ordered.at(-1)?.id ?? null));
  }

  /** The messages that are shown, the first one first. */
  get path() {
    /** @type {Message[]} */
    const path = [];
    for (let at = this.get(this.head); at; at = this.get(at.parent)) path.push(at);
    return path.reverse();
  }

  toJSON() {
    return { head: this.head, messages: [...this.#messages.values()] };
  }

  get isEmpty() {
    return this.#messages.size === 0;
  }

  /**
   * How many messages at the beginning of the path look as they do in other branches.
   *
   * @param {Branches} other
   */
  alike(other) {
    const [mine, others] = [this, other].map((branches) => branches.path.map((message) =>
      JSON.stringify([message, branches.siblings(message).map(({ id }) => id)])));
    const first = mine.findIndex((look, i) => look !== others[i]);
    return first < 0 ? mine.length : first;
  }

  /** @param {string | null} id */
  get(id) {
    return id === null ? undefined : this.#messages.get(id);
  }

  /**
   * The message and the branches beside it, the oldest first.
   *
   * @param {Message} message
   */
  siblings({ parent }) {
    return this.#next.get(parent) ?? [];
  }

  /**
   * Puts a message behind `parent`; the path leads to it.
   *
   * @param {Message["role"]} role
   * @param {string} content
   * @param {string | null} parent
   * @param {Message["files"]} [files]
   * @returns {Message}
   */
  add(role, content, parent, files = []) {
    const last = [...this.#messages.values()].at(-1)?.created ?? 0;
    const created = Math.max(Date.now(), last + 1);
    /** @type {Message} */
    const message = { id: newId(), conversation: this.conversation, parent, role, content, created };
    if (files.length) message.files = files;
    this.#put(message);
    this.head = message.id;
    return message;
  }

  /**
   * Takes back messages that nothing follows.
   *
   * @param {Message[]} messages
   * @param {string | null} head where the path ends now
   */
  withdraw(messages, head) {
    for (const message of messages) {
      this.#messages.delete(message.id);
      this.#next.set(message.parent, this.siblings(message).filter(({ id }) => id !== message.id));
    }
    this.head = head;
  }

  /**
   * Leads the path through a message, and on to the newest below it.
   *
   * @param {string} id
   */
  switchTo(id) {
    this.head = this.#leaf(id);
  }

  /** @param {Message} message newer than all others */
  #put(message) {
    this.#messages.set(message.id, message);
    this.#next.set(message.parent, [...this.siblings(message), message]);
  }

  /** @param {string | null} id */
  #leaf(id) {
    for (;;) {
      const next = this.#next.get(id)?.at(-1);
      if (id === null || !next) return id;
      id = next.id;
    }
  }
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
