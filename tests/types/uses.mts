/** A program of somebody who uses the npm package: its types say what is right, and what is not. */

import { Octavo, OctavoError } from "octavo";
import type {
  ChatCompletion, ChatCompletionChunk, CompletionOptions, Conversation, LoadOptions, LoadResult, Recovery,
  Stream, TextCompletion, TextOptions,
} from "octavo";

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;

const options: LoadOptions = { model: "models/any.gguf", device: "auto", context: 4096 };
const octavo = new Octavo({ workerUrl: "/octavo/worker/worker.mjs", share: "page" });
const loaded: LoadResult = await octavo.load(options, ({ stage, loaded, total }) => {
  const share: number = loaded / total;
  const isStage: Same<typeof stage, any> = false;
  console.log(stage, share, isStage);
});
const context: number = loaded.model.context;
const isContext: Same<typeof loaded.model.context, number> = true;

const messages = [{ role: "user", content: "Hello!" }];
const answer = await octavo.chat.completions.create({ messages, logprobs: true });
const reason: "stop" | "length" | "cancelled" = answer.choices[0].finish_reason;
const ids: number[] = answer.octavo.ids;
for await (const chunk of octavo.chat.completions.create({ messages, stream: true })) {
  const isChunk: Same<typeof chunk, ChatCompletionChunk> = true;
  const text: string | undefined = chunk.choices[0].delta.content;
  console.log(isChunk, text);
}

async function eitherWay(chat: CompletionOptions, raw: TextOptions, stream: boolean) {
  const answer: Stream<ChatCompletionChunk> | ChatCompletion = await octavo.chat.completions.create(chat);
  await octavo.completions.create(raw);
  await octavo.conversation().send("Where?", { stream });
  if ("controller" in answer) answer.controller.abort();
}
const hear = ({ detail }: CustomEvent<Recovery>) => console.log(detail.losses);
octavo.addEventListener("recovery", hear, { once: true });
octavo.addEventListener("recovery", ({ detail }) => {
  const isState: Same<typeof detail, Recovery> = true;
  console.log(isState, detail.state === "moved");
});
octavo.removeEventListener("recovery", hear);

const { signal } = new AbortController();
const raw: TextCompletion = await octavo.completions.create({ prompt: [1, 2], signal, logprobs: 2 });
for await (const chunk of octavo.completions.create({ prompt: "Once", stream: true })) {
  const text: string = chunk.choices[0].text;
  console.log(text);
}
const tokens = await octavo.tokenize("ship", { model: "any" });
const areTokens: Same<typeof tokens, number[]> = true;
const text: string = await octavo.detokenize(tokens);
const { calls, top } = await octavo.inspect({ messages, top: 3, signal });
const largest: number = calls[0].layer === null ? calls[0].high : top[0].probability;
const embeddings = await octavo.embeddings.create({ model: "encoder/manifest.json", input: ["a"] });
const vector: number[] = embeddings.data[0].embedding;
const asText = await octavo.embeddings.create({ model: "a", input: "a", encoding_format: "base64" });
const base64: string = asText.data[0].embedding;
const { models } = await octavo.models();
const bytes: number = models[0].kept_bytes;
const conversation: Conversation = octavo.conversation({ messages, temperature: 0.7 });
const said: ChatCompletion = await conversation.send("Where?", { max_tokens: 9 });
for await (const chunk of conversation.fork(2).send([{ type: "text", text: "Why?" }], { stream: true })) {
  const isChunk: Same<typeof chunk, ChatCompletionChunk> = true;
  console.log(isChunk, said.choices[0].message.content === conversation.messages.at(-1)?.content);
}
const error = new OctavoError("internal", "It failed.");
const hint: string = error.hint;
(await conversation.send("Why?", { stream: true })).controller.abort();
console.log(context, isContext, reason, ids, raw, areTokens, text, largest, bytes, hint, vector, base64);
console.log(eitherWay);

// @ts-expect-error an event of another name has no details
octavo.addEventListener("recovered", ({ detail }) => console.log(detail));
// @ts-expect-error a device of another name
await octavo.load({ device: "tpu" });
// @ts-expect-error a conversation is a list
await octavo.chat.completions.create({ messages: "Hello!" });
// @ts-expect-error a temperature is a number
await octavo.completions.create({ prompt: "Once", temperature: "hot" });
// @ts-expect-error a conversation's options have no prompt
await octavo.chat.completions.create({ prompt: "Once" });
// @ts-expect-error a raw text has no messages
await octavo.completions.create({ messages });
// @ts-expect-error ids, not a text
await octavo.detokenize("ship");
// @ts-expect-error a conversation keeps its own messages
await conversation.send("Where?", { messages });
