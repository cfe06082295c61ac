// Runs the worker of the tokenizer under Node:
//   node tokenizer.mjs FOLDER < cases
// FOLDER holds tokenizer.mjs and what it imports; a line of `cases` is {"json": a tokenizer.json,
// "texts": [...]}, and the answer to it a line with the ids of each text.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
/** @type {(value: any) => void} */
let answered = () => {};
Object.assign(globalThis, {
  self: globalThis,
  location: { href: folder.href },
  postMessage: (/** @type {any} */ answer) => answered(answer),
});
await import(new URL("tokenizer.mjs", folder).href);

const ask = (/** @type {object} */ question) => new Promise((resolve, reject) => {
  answered = ({ value, error }) => (error === undefined ? resolve(value) : reject(error));
  /** @type {any} */ (globalThis).onmessage({ data: { id: 1, question } });
});
const encoder = new TextEncoder();
for await (const line of createInterface({ input: process.stdin })) {
  const { json, texts } = JSON.parse(line);
  await ask({ json: encoder.encode(json) });
  const ids = [];
  for (const text of texts) ids.push([...await ask({ text: encoder.encode(text) })]);
  console.log(JSON.stringify(ids));
}
