/** Texts cut into passages that an encoder takes whole, and those that are nearest to a question. */

/**
 * @typedef {{start: number, end: number}} Span of a text: text.slice(start, end)
 * @typedef {Span & {tokens: number}} Piece
 */

const TOKENS = 120; // of a passage, at most: encoders compute 128 at once, and many were trained on as many
const OVERLAP = 20; // tokens of the end of one passage that the next begins with, at most
const PIECE = 40; // tokens of a longer sentence that stay together
const LONGEST_BLOCK = 20_000; // characters of a paragraph that is not cut anywhere
// What a tokenizer takes for a token, about: some letters, a few digits, a sign, or a character of a
// script that writes without spaces. Everything but spaces is part of one.
const TOKEN =
  /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Hang}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmr}\p{sc=Mymr}]|[\p{L}\p{M}]{1,4}|\p{N}{1,3}|\S/gu;
const SENTENCES = new Intl.Segmenter("und", { granularity: "sentence" });

/**
 * Cuts a text into passages of at most about 120 tokens, between sentences where it can. They
 * overlap within a paragraph; one that is half full ends where its paragraph does.
 *
 * @param {string} text
 * @returns {Span[]} in order, without spaces around; what no passage has is spaces
 */
export function cut(text) {
  /** @type {Span[]} */
  const passages = [];
  /** Of the next passage. @type {Piece[]} */
  let open = [];
  let fresh = 0; // those of them that no passage has yet
  let tokens = 0;
  const close = () => {
    if (fresh) passages.push({ start: open[0].start, end: open[open.length - 1].end });
    fresh = 0;
  };
  for (const block of blocksOf(text)) {
    for (const piece of piecesOf(text, block)) {
      if (tokens + piece.tokens > TOKENS) {
        close();
        [open, tokens] = tailOf(open, Math.min(OVERLAP, TOKENS - piece.tokens));
      }
      open.push(piece);
      tokens += piece.tokens;
      fresh++;
    }
    if (tokens < TOKENS / 2) continue;
    close();
    [open, tokens] = [[], 0];
  }
  close();
  return passages;
}

/**
 * The nearest passages to a question, the nearest first.
 *
 * @param {Float32Array[]} vectors of passages, of length 1
 * @param {ArrayLike<number>} question of length 1
 * @returns {{at: number, similarity: number}[]} places in `vectors`, and cosines
 */
export function ranked(vectors, question) {
  const found = vectors.map((vector, at) => ({ at, similarity: dot(vector, question) }));
  return found.sort((a, b) => b.similarity - a.similarity);
}

/**
 * Joins spans that overlap or touch.
 *
 * @template {Span & {similarity: number}} T
 * @param {T[]} spans of one text
 * @returns {(Span & {similarity: number})[]} in the order of the text, each as near as its nearest part
 */
export function joined(spans) {
  /** @type {(Span & {similarity: number})[]} */
  const found = [];
  for (const { start, end, similarity } of spans.toSorted((a, b) => a.start - b.start)) {
    const last = found.at(-1);
    if (!last || start > last.end) {
      found.push({ start, end, similarity });
      continue;
    }
    last.end = Math.max(last.end, end);
    last.similarity = Math.max(last.similarity, similarity);
  }
  return found;
}

/**
 * The lines that a span is on, from 1.
 *
 * @param {string} text
 * @param {Span} span
 * @returns {[number, number]} the first and the last
 */
export function linesOf(text, { start, end }) {
  const first = 1 + breaksIn(text.slice(0, start));
  return [first, first + breaksIn(text.slice(start, end))];
}

/** @param {string} text */
function breaksIn(text) {
  return text.match(/\r\n|\r|\n/g)?.length ?? 0;
}

/**
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/**
 * Paragraphs, which blank lines part.
 *
 * @param {string} text
 * @returns {Generator<Span>}
 */
function* blocksOf(text) {
  const blank = /\n\s*\n/g;
  for (let start = 0; start < text.length;) {
    blank.lastIndex = start;
    const end = blank.exec(text)?.index ?? text.length;
    const next = blank.lastIndex || end;
    while (end - start > LONGEST_BLOCK) {
      const at = start + LONGEST_BLOCK - Number(isLow(text, start + LONGEST_BLOCK));
      yield { start, end: at };
      start = at;
    }
    yield { start, end };
    start = next;
  }
}

/** Whether a character's second half is there. @param {string} text @param {number} at */
function isLow(text, at) {
  return (text.charCodeAt(at) & 0xfc00) === 0xdc00;
}

/**
 * The sentences of a paragraph; of a long one, parts, which begin with a word if words are not long.
 *
 * @param {string} text
 * @param {Span} block
 * @returns {Generator<Piece>}
 */
function* piecesOf(text, { start: from, end: to }) {
  for (const { segment, index } of SENTENCES.segment(text.slice(from, to))) {
    const sentence = from + index;
    /** @type {Piece | null} */
    let piece = null;
    for (const { 0: token, index: place } of segment.matchAll(TOKEN)) {
      const start = sentence + place;
      const isWord = piece !== null && start > piece.end;
      if (piece && (piece.tokens >= 2 * PIECE || (piece.tokens >= PIECE && isWord))) {
        yield piece;
        piece = null;
      }
      piece ??= { start, end: start, tokens: 0 };
      piece.end = start + token.length;
      piece.tokens++;
    }
    if (piece) yield piece;
  }
}

/**
 * The last pieces with at most so many tokens, and how many those are.
 *
 * @param {Piece[]} pieces
 * @param {number} most
 * @returns {[Piece[], number]}
 */
function tailOf(pieces, most) {
  let [at, tokens] = [pieces.length, 0];
  while (at > 0 && tokens + pieces[at - 1].tokens <= most) tokens += pieces[--at].tokens;
  return [pieces.slice(at), tokens];
}
