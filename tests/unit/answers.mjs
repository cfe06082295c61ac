// Answers in OpenAI's shapes, and fields made of options, with an engine that says what is written
// here.

import assert from "node:assert/strict";

import { stream } from "../../web/completions.mjs";
import { Conversation } from "../../web/conversation.mjs";
import { checkProgress, chatFields, given, scopeOf, textFields } from "../../web/options.mjs";
import { CHAT, TEXT } from "../../web/shapes.mjs";
import { nothingGenerated } from "../../worker/replies.mjs";
import { check, report } from "./checks.mjs";

const HI = [{ role: "user", content: "Hi" }];

/** An answer that goes on until it is stopped; `isStopped` says whether it was. */
function endless(shape, deltas = []) {
  const engine = { isStopped: false };
  const generate = ({ signal }, onDelta) => new Promise((resolve) => {
    const stop = () => {
      engine.isStopped = true;
      resolve(nothingGenerated());
    };
    signal.addEventListener("abort", stop);
    deltas.forEach(onDelta);
  });
  engine.answer = stream({ stream: true }, generate, shape, () => "m");
  engine.chunks = engine.answer[Symbol.asyncIterator]();
  return engine;
}

const DELTA = { kind: "delta", text: "a", num_tokens: 1 };
for (const [name, shape] of Object.entries({ CHAT, TEXT })) {
  await check(`${name}: left before the first chunk`, async () => {
    const engine = endless(shape);
    assert.deepEqual(await engine.chunks.return("left"), { done: true, value: "left" });
    assert(engine.isStopped);
    assert((await engine.chunks.next()).done);
  });
  await check(`${name}: left after some`, async () => {
    const engine = endless(shape, [DELTA, DELTA]);
    for await (const chunk of await engine.answer) if (chunk.octavo.num_tokens) break;
    assert(engine.isStopped);
  });
  await check(`${name}: left while a chunk is waited for`, async () => {
    const engine = endless(shape, [DELTA]);
    for (let i = 0; i < shape.opening.length + 1; i++) await engine.chunks.next();
    const [waiting, left] = [engine.chunks.next(), engine.chunks.return()];
    assert((await left).done && engine.isStopped);
    assert.equal((await waiting).value?.choices[0].finish_reason ?? "cancelled", "cancelled");
  });
}

await check("a server's tokens have no ids, and are counted", async () => {
  const usage = { prompt_tokens: 2, cached_tokens: 0, completion_tokens: 3 };
  const chunks = [];
  for await (const chunk of stream({}, async () => ({ ...nothingGenerated(), usage }), CHAT, () => "m")) {
    chunks.push(chunk);
  }
  assert.equal(chunks.at(-1).octavo.num_tokens, 3);
});

await check("what goes to the worker", () => {
  const said = { messages: HI, stream: true, signal: null, user: "me", stop: null, max_completion_tokens: 4 };
  const [message] = chatFields(said).messages;
  assert.deepEqual(chatFields(said), { messages: [message], user: "me", max_tokens: 4 });
  assert.deepEqual(chatFields({ continues: 3 }), { continues: 3 });
  assert.deepEqual(textFields({ continues: 3 }), { continues: 3 });
  assert.deepEqual(textFields({ prompt: "a", logprobs: 0 }), { prompt: "a", logprobs: true, top_logprobs: 0 });
  assert.deepEqual(chatFields({ continues: 3, messages: HI }).messages, [message], "the engine refuses both");
  assert.equal(textFields({ continues: 3, prompt: "a" }).prompt, "a");
  assert.deepEqual([true, false, null, undefined, "page"].map(scopeOf), ["site", "", "", "", "page"]);
  checkProgress(null);
});

const refused = (code, work) => () => assert.throws(work, { name: "OctavoError", code });
const conversation = () => new Conversation({}, () => assert.fail("it was asked"));
for (const [name, work] of Object.entries({
  id: () => given({ id: 3 }),
  kind: () => given({ model: "m", kind: "stop" }),
  "a text": () => given("m"),
  "stream: yes": () => chatFields({ messages: HI, stream: "yes" }),
  "stream: 0": () => textFields({ prompt: "a", stream: 0 }),
  "no messages": () => chatFields({}),
  "messages of another kind": () => chatFields({ continues: 3, messages: "Hi" }),
  "no prompt": () => textFields({}),
  "share: tab": () => scopeOf("tab"),
  "share: 1": () => scopeOf(1),
  "progress: 7": () => checkProgress(7),
  "messages of one's own": () => conversation().send("Hi", { messages: HI }),
  "a conversation that is no list": () => new Conversation({ messages: "Hi" }, () => {}),
})) await check(name, refused("request.invalid", work));

report();
