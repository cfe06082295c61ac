// A worker that says what a test has written down, in place of worker/worker.mjs: no model, no
// Python, but the protocol of the real one, and its way to the page, which shares its engine. A
// question that is no key of SCRIPTS is answered by itself: so a test sees what the model would get.

import { Hub } from "./hub.mjs";

/** By question: texts of tokens, of the reasoning and of the answer. */
const SCRIPTS = {};
const TOKENS_PER_S = 0;
const CONTEXT = 8192;

const hub = new Hub(receive, (message) => self.postMessage(message));
const running = new Map(); // stops, by the id of the answer
const rests = new Map(); // of answers, likewise: with them they are continued

const device = { kind: "cpu", name: "script", software: false, activations: "f32" };
const model = { name: "script", architecture: "none", context: CONTEXT, parameters: 0, bytes: 0, sampling: {} };
const idsOf = (text) => (text.match(/\w+|\s+|[^\w\s]/gu) ?? []).map((_, i) => i);

function tokensFor(question) {
  const { reasoning = [], answer } = SCRIPTS[question] ?? { answer: question.match(/[\s\S]{1,4}/g) };
  return [...reasoning.map((text) => ["reasoning", text]), ...answer.map((text) => ["delta", text])];
}

/** The rest of an answer, of which only the text is known. */
function restOf(messages) {
  const [question, begun] = messages.slice(-2).map(({ content }) => content);
  const text = tokensFor(question).filter(([kind]) => kind === "delta").map(([, each]) => each).join("");
  return text.slice(begun.length).match(/[\s\S]{1,4}/g).map((each) => ["delta", each]);
}

async function generate({ id, messages = [], continues, continue_final_message }) {
  const question = messages.at(-1)?.content ?? "";
  const begun = continue_final_message ? restOf(messages) : rests.get(continues);
  const tokens = begun ?? tokensFor(question);
  let [isStopped, sent] = [false, 0];
  running.set(id, () => (isStopped = true));
  const start = performance.now();
  while (sent < tokens.length && !isStopped) {
    const due = TOKENS_PER_S ? ((performance.now() - start) / 1000) * TOKENS_PER_S : Infinity;
    for (; sent < Math.min(due, tokens.length); sent++) {
      hub.send({ id, kind: tokens[sent][0], text: tokens[sent][1], num_tokens: sent + 1 });
    }
    await new Promise((done) => setTimeout(done, 5));
  }
  running.delete(id);
  rests.set(id, tokens.slice(sent));
  const said = tokens.slice(0, sent);
  const textOf = (kind) => said.filter(([of]) => of === kind).map(([, text]) => text).join("");
  hub.send({
    id,
    kind: "result",
    value: {
      text: textOf("delta"),
      reasoning: textOf("reasoning"),
      ids: said.map((_, i) => i),
      finish_reason: isStopped ? "cancelled" : "stop",
      handle: id,
      usage: { prompt_tokens: idsOf(question).length, cached_tokens: 0, completion_tokens: sent },
      timing: { ttft_ms: 1, prefill_tokens_per_s: 1, decode_tokens_per_s: TOKENS_PER_S },
    },
  });
}

const RESULTS = {
  load: () => ({ key: "", device, model, memory_bytes: 0, memory: {}, load_ms: 0, variants: [], kept: true }),
  status: () => ({ state: "ready", device, model, memory_bytes: 0 }),
  tokenize: ({ text }) => ({ ids: idsOf(text) }),
  models: () => ({ default: "", models: [], storage: null }),
};

self.onmessage = (event) => event.data.kind !== "share" && hub.obey(event);

function receive(data) {
  if (data.kind === "generate") return generate(data);
  const isStop = data.kind === "stop" || data.kind === "reset";
  const stopped = isStop && running.size > 0;
  if (isStop) for (const [id, stop] of running) if (data.target === undefined || data.target === id) stop();
  hub.send({ id: data.id, kind: "result", value: RESULTS[data.kind]?.(data) ?? { stopped } });
}
