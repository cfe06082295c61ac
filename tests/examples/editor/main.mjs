/** An editor in which a model in this tab proposes how the line goes on. */

import { EditorView, minimalSetup } from "codemirror";
import { Octavo } from "octavo";

import { proposals } from "./proposals.mjs";

const status = document.querySelector("[role=status]");
const model = new URLSearchParams(location.search).get("model") ?? "/model.gguf";
const octavo = new Octavo({ workerUrl: "/octavo/worker/worker.mjs" }); // see vite.config.mjs

try {
  const loaded = await octavo.load({ model }, ({ stage, loaded, total }) => {
    status.textContent = `${stage}: ${Math.floor((100 * loaded) / (total || 1))} %`;
  });
  status.textContent = `${loaded.model.name} is ready`;
  const extensions = [proposals(octavo), minimalSetup, EditorView.lineWrapping];
  new EditorView({ parent: document.querySelector("main"), extensions }).focus();
} catch ({ message, hint }) {
  status.textContent = `${message} ${hint ?? ""}`;
}
