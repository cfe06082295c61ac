/** How long Stop takes wherever it is pressed, and what Continue saves: rows of the bench. */

import { Octavo } from "./client.mjs";
import { add, median, say, secondsSince } from "./report.mjs";

const STORY = [{ role: "user", content: "Write a very long story about a lighthouse." }];
const SENTENCE = "The sea is wide, and the old lighthouse stands alone. ";
const SENTENCE_TOKENS = 12.5; // about
const LONG_SHARE = { real: 0.7, software: 0.1 }; // of the context, a prompt that is stopped
const CUT = 24; // tokens of an answer that is continued

/**
 * From `stop()` to the end of what it stops: in decode, in prefill and in a load.
 *
 * @param {Octavo} client
 * @param {import("./client.mjs").LoadOptions} options
 * @param {number} count
 */
export async function measureStops(client, options, count) {
  await say(`Stopping in decode, ${count} times`);
  const decode = [];
  for (let i = 0; i < count; i++) decode.push(await stopInDecode(client, 3 + (i % 20)));
  stopRows("decode", "stop in decode", decode);

  const { device, model } = await client.status();
  const share = LONG_SHARE[device?.software ? "software" : "real"];
  const sentences = Math.ceil((share * (model?.context ?? 0)) / SENTENCE_TOKENS);
  await say(`Stopping in prefill, ${count} times`);
  const whole = await prefillSeconds(client, sentences);
  const prefill = [];
  for (let i = 0; i < count; i++) {
    prefill.push(await stopInPrefill(client, sentences, Math.min(2, whole) * (i + 0.5) / count));
  }
  stopRows("prefill", "stop in prefill", prefill);

  const loads = Math.ceil(count / 4);
  await say(`Stopping a load, ${loads} times`);
  const load = [];
  for (let i = 0; i < loads; i++) load.push(await stopALoad(options, 2 * (i + 0.5) / loads));
  stopRows("load", "stop in a load", load);
}

/**
 * @param {string} where
 * @param {string} label
 * @param {(number | null)[]} measured null for what had ended before
 */
function stopRows(where, label, measured) {
  const times = measured.filter((ms) => ms !== null).toSorted((a, b) => a - b);
  if (!times.length) return;
  const note = `${times.length} times`;
  add(`stop_${where}_ms`, label, median(times), "ms", note);
  const p99 = times[Math.min(times.length - 1, Math.floor(0.99 * times.length))];
  add(`stop_${where}_p99_ms`, "  p99 of it", p99, "ms", note);
}

/**
 * @param {Octavo} client
 * @param {number} after tokens
 */
async function stopInDecode(client, after) {
  let asked = 0;
  let reason;
  const request = { messages: STORY, max_tokens: 256, stream: /** @type {const} */ (true) };
  for await (const chunk of client.chat.completions.create(request)) {
    reason = chunk.choices[0].finish_reason;
    if (asked || chunk.octavo.num_tokens < after) continue;
    asked = performance.now();
    client.stop();
  }
  return reason === "cancelled" ? performance.now() - asked : null;
}

/**
 * A prompt of which nothing is in the KV cache.
 *
 * @param {Octavo} client
 * @param {number} sentences
 */
async function longPrompt(client, sentences) {
  await client.reset();
  return { messages: [{ role: "user", content: SENTENCE.repeat(sentences) }], max_tokens: 1 };
}

/** @param {Octavo} client @param {number} sentences */
async function prefillSeconds(client, sentences) {
  const request = await longPrompt(client, sentences);
  const started = performance.now();
  await client.chat.completions.create(request);
  return secondsSince(started);
}

/**
 * @param {Octavo} client
 * @param {number} sentences
 * @param {number} seconds after which it is stopped
 */
async function stopInPrefill(client, sentences, seconds) {
  const answer = client.chat.completions.create(await longPrompt(client, sentences));
  await sleep(seconds);
  const asked = performance.now();
  client.stop();
  const { choices } = await answer;
  return choices[0].finish_reason === "cancelled" ? performance.now() - asked : null;
}

/**
 * @param {import("./client.mjs").LoadOptions} options
 * @param {number} seconds after which it is stopped
 */
async function stopALoad(options, seconds) {
  const client = new Octavo();
  try {
    const load = client.load(options).then(() => null, (error) => error.code);
    await sleep(seconds);
    const asked = performance.now();
    client.stop();
    return (await load) === "request.cancelled" ? performance.now() - asked : null;
  } finally {
    client.close();
  }
}

/** @param {number} seconds */
function sleep(seconds) {
  return new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
}

/**
 * The next token of an answer that was cut, against computing all of it again.
 *
 * @param {Octavo} client
 */
export async function measureContinue(client) {
  await say("Continuing an answer");
  await client.reset();
  const cut = await client.chat.completions.create({ messages: STORY, max_tokens: CUT });
  const continues = cut.octavo.handle;
  const continued = await firstMs(client, { continues, max_tokens: 4 }, 1);
  await client.reset();
  const restarted = await firstMs(client, { messages: STORY, max_tokens: CUT + 4 }, CUT + 1);
  add("continue_ms", "next token of a continued answer", continued, "ms");
  add("restart_to_continue", "  by starting it anew, to that", restarted / continued, "times");
}

/**
 * Until the text of so many tokens has come.
 *
 * @param {Octavo} client
 * @param {import("./client.mjs").CompletionOptions} options
 * @param {number} tokens
 */
async function firstMs(client, options, tokens) {
  const started = performance.now();
  let ms = 0;
  const request = { ...options, stream: /** @type {const} */ (true) };
  for await (const chunk of client.chat.completions.create(request)) {
    if (chunk.octavo.num_tokens >= tokens) ms ||= performance.now() - started;
  }
  return ms;
}
