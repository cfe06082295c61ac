// Answers lines of standard input, each ["kind", ...texts] in JSON, with what worker/manifest.mjs
// makes of them: {"ok": value}, or {"code", "message", "hint"} of the error.
import { createInterface } from "node:readline";

import { findModel, parseCatalogue, parseManifest } from "../../worker/manifest.mjs";

const BASE = "https://octavo.test/web/models.json";
const ACTIONS = {
  manifest: (text) => parseManifest(text, false).size,
  catalogue: (text) => parseCatalogue(text).models.length,
  model: (key, catalogue) => findModel(key, parseCatalogue(catalogue), BASE),
};

for await (const line of createInterface({ input: process.stdin })) {
  const [kind, ...texts] = JSON.parse(line);
  let answer;
  try {
    answer = { ok: ACTIONS[kind](...texts) };
  } catch (error) {
    answer = { code: error.code ?? null, message: String(error.message), hint: error.hint };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
