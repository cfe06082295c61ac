/** Loads the model that the address names, and answers what is asked. */

import { Octavo } from "octavo";

const form = document.querySelector("form");
const button = document.querySelector("button");
const status = document.querySelector("[role=status]");
const output = document.querySelector("output");

const model = new URLSearchParams(location.search).get("model") ?? "model.gguf";
const octavo = new Octavo();

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  await shown(() => answer(form.elements.message.value));
  button.disabled = false;
});

await shown(load);

async function load() {
  const loaded = await octavo.load({ model }, ({ stage, loaded, total }) => {
    status.textContent = `${stage}: ${Math.floor((100 * loaded) / (total || 1))} %`;
  });
  status.textContent = `${loaded.model.name} is ready`;
  button.disabled = false;
}

/** @param {string} content */
async function answer(content) {
  output.textContent = "";
  const messages = [{ role: "user", content }];
  const stream = octavo.chat.completions.create({ messages, max_tokens: 200, stream: true });
  for await (const chunk of stream) output.textContent += chunk.choices[0].delta.content ?? "";
}

/** @param {() => Promise<void>} work whose error is shown */
async function shown(work) {
  try {
    await work();
  } catch ({ message, hint }) {
    status.textContent = `${message} ${hint ?? ""}`;
  }
}
