/**
 * A nested worker that says which tokens may come next in JSON of a given schema. It is told the
 * vocabulary first, then schemas; each makes a matcher, which goes from token to token. The library
 * ends for good at a schema that it cannot read: whoever asked closes the worker then.
 */

import { serve } from "./remote.mjs";

const XGRAMMAR_URL = new URL("./web-xgrammar.js", import.meta.url).href;
const SEPARATORS = [", ", ": "]; // one line, as models write JSON most often
/** @type {any} */
let library = null;
/** @type {any} */
let compiler = null;
/** @type {Map<number, any>} */
const matchers = new Map();
let nextMatcher = 1;

serve(async (question) => {
  if (question.vocabulary) return learn(question);
  if (question.schema !== undefined) return begin(question);
  if (question.free !== undefined) return free(question.free);
  return next(question);
});

/** @param {{vocabulary: string[], ends: number[]}} question tokens in the alphabet of GPT-2 */
async function learn({ vocabulary, ends }) {
  library = await import(XGRAMMAR_URL);
  const size = vocabulary.length;
  const info = await library.TokenizerInfo.createTokenizerInfo(
    vocabulary, "byte_level", false, size, ends);
  compiler = await library.GrammarCompiler.createGrammarCompiler(info);
  return null;
}

/**
 * @param {{schema: string, strict: boolean}} question strict: no other properties than the schema's
 * @returns {Promise<number>} a matcher
 */
async function begin({ schema, strict }) {
  const grammar = await compiler.compileJSONSchema(schema, false, -1, SEPARATORS, strict);
  const matcher = await library.GrammarMatcher.createGrammarMatcher(grammar);
  grammar.dispose?.();
  matchers.set(nextMatcher, matcher);
  return nextMatcher++;
}

/**
 * Takes the tokens that came, and tells which may come next.
 *
 * @param {{matcher: number, tokens: number[]}} question
 * @returns {Promise<Int32Array | null>} a bit for each token; null after an end token, or if one of
 *   the tokens may not come
 */
async function next({ matcher: id, tokens }) {
  const matcher = matchers.get(id);
  for (const token of tokens) if (matcher.isTerminated() || !matcher.acceptToken(token)) return null;
  // A copy, as its buffer is given away.
  return matcher.isTerminated() ? null : (await matcher.getNextTokenBitmask()).slice();
}

/** @param {number} id */
function free(id) {
  matchers.get(id)?.dispose();
  matchers.delete(id);
  return Promise.resolve(null);
}
