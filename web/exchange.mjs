/** Conversations as files: JSON to keep and read again, Markdown to read. */

import { MAX_FILES, nameOf, prompted } from "./attached.mjs";
import { Branches, newId } from "./branches.mjs";

/**
 * @typedef {import("./conversations.mjs").Whole} Whole
 * @typedef {import("./branches.mjs").Message} Message
 */

const FORMAT = "octavo.conversations";
const VERSION = 1;
const MAX_BYTES = 64e6;
const MAX_CONVERSATIONS = 10_000;
const MAX_MESSAGES = 20_000; // of one conversation
export const MAX_TITLE = 120; // characters
const MAX_TEXT = 2_000_000; // characters of one message
const LATEST = 8.64e15; // milliseconds: no date is later
const FINISHES = ["length", "cancelled", "context.full"];

/** Whether there is anything to be seen in a title. @param {string} title */
export function isSeen(title) {
  return /[^\s\p{C}]/u.test(title);
}

/** Of a conversation that begins with a question. @param {Message} question */
export function titleOf({ content, files }) {
  const line = (content || (files?.[0]?.name ?? "")).trim().split("\n")[0];
  if (!isSeen(line)) return "…";
  return line.length <= MAX_TITLE ? line : `${line.slice(0, MAX_TITLE - 1).replace(/\p{Cs}$/u, "")}…`;
}

/** A file that is none of ours; `key` names the sentence that says why. */
export class ImportError extends Error {
  /** @param {string} key */
  constructor(key) {
    super(key);
    this.name = "ImportError";
    this.key = key;
  }
}

/** @param {Whole[]} wholes */
export function toJson(wholes) {
  const conversations = wholes.map(({ conversation, messages }) => ({
    ...conversation,
    messages: messages.map(({ conversation: _, ...message }) => message),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/**
 * The path that is shown, with headings for who says what.
 *
 * @param {Whole} whole
 * @param {Record<Message["role"], string>} names
 */
export function toMarkdown({ conversation, messages }, names) {
  const { path } = new Branches(conversation.id, messages, conversation.head);
  const parts = path.map((message) =>
    `## ${names[message.role]}\n\n${prompted(message).trim()}\n`);
  return [`# ${conversation.title}\n`, ...parts].join("\n");
}

/**
 * What a file holds, under new ids: nothing that is here is overwritten.
 *
 * @param {File} file
 * @returns {Promise<Whole[]>}
 */
export async function fromFile(file) {
  if (file.size > MAX_BYTES) throw new ImportError("import_large");
  let data;
  try {
    data = JSON.parse(await file.text());
  } catch {
    throw new ImportError("import_json");
  }
  if (data?.format !== FORMAT) throw new ImportError("import_format");
  if (data.version !== VERSION) throw new ImportError("import_version");
  return listOf(data.conversations, MAX_CONVERSATIONS).map(conversationOf);
}

/** @param {any} data */
function conversationOf(data) {
  const id = newId();
  /** New ids by those of the file. @type {Map<string, Message>} */
  const known = new Map();
  for (const each of listOf(data?.messages, MAX_MESSAGES)) {
    const name = textOf(each?.id, 64);
    check(!known.has(name));
    known.set(name, messageOf(each, id, known));
  }
  const messages = [...known.values()];
  check(messages.length > 0);
  const head = known.get(data.head)?.id ?? null;
  const [created, updated] = [timeOf(data.created), timeOf(data.updated)];
  const given = textOf(data.title, MAX_TITLE);
  const title = isSeen(given) ? given : titleOf(messages[0]);
  return { conversation: { id, title, created, updated, head }, messages };
}

/**
 * A message comes after the one that it follows, and is newer: there are no circles.
 *
 * @param {any} data
 * @param {string} conversation
 * @param {Map<string, Message>} known
 * @returns {Message}
 */
function messageOf(data, conversation, known) {
  const parent = known.get(data.parent);
  check(parent ? data.created > parent.created : data.parent === null);
  check(data.role === (parent?.role === "user" ? "assistant" : "user"));
  /** @type {Message} */
  const message = {
    id: newId(),
    conversation,
    parent: parent?.id ?? null,
    role: data.role,
    content: textOf(data.content, MAX_TEXT),
    created: timeOf(data.created),
  };
  if (data.files !== undefined) message.files = listOf(data.files, MAX_FILES).map(fileOf);
  if (data.reasoning !== undefined) message.reasoning = textOf(data.reasoning, MAX_TEXT);
  if (data.thought_ms !== undefined) message.thought_ms = timeOf(data.thought_ms);
  if (data.tokens !== undefined) message.tokens = timeOf(data.tokens);
  if (FINISHES.includes(data.finish)) message.finish = data.finish;
  return message;
}

/** @param {any} data */
function fileOf(data) {
  const file = { name: nameOf(textOf(data?.name, 255)), size: timeOf(data.size), text: textOf(data.text, MAX_TEXT) };
  return data.place === undefined ? file : { ...file, place: placeOf(data.place) };
}

/** @param {any} data */
function placeOf(data) {
  check(Math.abs(data?.similarity) <= 1.001); // a cosine, in single precision
  return { first: timeOf(data.first), last: timeOf(data.last), similarity: data.similarity };
}

/** @param {boolean} right */
function check(right) {
  if (!right) throw new ImportError("import_broken");
}

/**
 * @param {unknown} value
 * @param {number} most
 * @returns {any[]}
 */
function listOf(value, most) {
  if (!Array.isArray(value) || value.length > most) throw new ImportError("import_broken");
  return value;
}

/**
 * @param {unknown} value
 * @param {number} most characters
 */
function textOf(value, most) {
  if (typeof value !== "string" || value.length > most) throw new ImportError("import_broken");
  return value;
}

/** @param {unknown} value */
function timeOf(value) {
  if (typeof value !== "number" || !(value >= 0 && value <= LATEST)) {
    throw new ImportError("import_broken");
  }
  return value;
}

/**
 * Lets the visitor save a text as a file.
 *
 * @param {string} text
 * @param {string} title
 * @param {"json" | "md"} ending
 */
export function download(text, title, ending) {
  const type = ending === "json" ? "application/json" : "text/markdown";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "octavo"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
