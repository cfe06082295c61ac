/** Text files that go along with a question: read, checked, and as the model is told of them. */

/**
 * @typedef {object} Attachment
 * @property {string} name
 * @property {number} size of the file, in bytes
 * @property {string} text
 * @property {Place} [place] of a passage, in the file that it was found in
 * @property {boolean} [searched] whether a question gets passages of it instead, while it is written
 *
 * @typedef {object} Place
 * @property {number} first line, from 1
 * @property {number} last line
 * @property {number} similarity to what was searched for: the cosine of two vectors
 */

export const MAX_FILES = 10; // of one question
const MAX_BYTES = 2_000_000;
const MAX_NAME = 120; // characters
const CONTROLS = /[\0-\x08\x0e-\x1a\x1c-\x1f]/; // what no text has: escape sequences, perhaps

/** A file that cannot go along; `key` names the sentence that says why. */
export class AttachError extends Error {
  /**
   * @param {string} key
   * @param {string} name of the file
   */
  constructor(key, name) {
    super(key);
    this.name = "AttachError";
    this.key = key;
    this.file = name;
  }
}

/**
 * @param {File} file in UTF-8, or in UTF-16 with its mark
 * @returns {Promise<Attachment>}
 */
export async function attachmentOf(file) {
  const name = nameOf(file.name);
  if (file.size > MAX_BYTES) throw new AttachError("attach_large", name);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = decoded(bytes);
  if (text === null) throw new AttachError("attach_binary", name);
  if (!text.trim()) throw new AttachError("attach_empty", name);
  return { name, size: bytes.length, text };
}

/**
 * @param {string} text
 * @param {string} name
 * @returns {Attachment}
 */
export function attachmentOfText(text, name) {
  const size = new TextEncoder().encode(text).length;
  if (size > MAX_BYTES) throw new AttachError("attach_large", name);
  return { name, size, text };
}

/**
 * One line without what turns or hides its characters, its ending kept.
 *
 * @param {string} name
 */
export function nameOf(name) {
  const visible = name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, " ").replace(/\s+/g, " ").trim();
  const characters = [...visible];
  if (characters.length <= MAX_NAME) return visible || "text";
  return `${characters.slice(0, MAX_NAME - 21).join("")}…${characters.slice(-20).join("")}`;
}

/**
 * @param {Uint8Array} bytes
 * @returns {string | null} null if that is no text
 */
function decoded(bytes) {
  const [first, second] = bytes;
  const encoding = first === 0xff && second === 0xfe ? "utf-16le"
    : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return CONTROLS.test(text) ? null : text;
  } catch {
    return null;
  }
}

/**
 * What the model gets of a file:
 *
 *     File "notes.txt":
 *     ```
 *     the text
 *     ```
 *
 * or of a passage, with `File "notes.txt", lines 3-7:` above it. The fence is longer than any in the
 * text, so that no text ends it.
 *
 * @param {Attachment} attachment
 */
export function framed({ name, text, place }) {
  let longest = 2;
  for (const [ticks] of text.matchAll(/`+/g)) longest = Math.max(longest, ticks.length);
  const fence = "`".repeat(longest + 1);
  const lines = place ? `, lines ${place.first}-${place.last}` : "";
  return `File "${name}"${lines}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/**
 * What the model gets of a question: its files, then what is asked.
 *
 * @param {{content: string, files?: Attachment[]}} message
 */
export function prompted({ content, files = [] }) {
  return [...files.map(framed), content].filter(Boolean).join("\n\n");
}
