/**
 * A CodeMirror extension: behind the cursor stands, in grey, how the text may go on.
 *
 * Each keystroke ends the completion under way and begins another at once. No pause is waited for:
 * all but the last few tokens of the text are in the KV cache from the keystroke before, so that
 * the first new token comes soon, and an end is heard within two bursts of tokens.
 */

import { Prec, StateEffect, StateField } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin, WidgetType, keymap } from "@codemirror/view";

const MAX_TOKENS = 24; // of a proposal
const MAX_CHARACTERS = 1000; // that are read before the cursor; they must fit into the context
const STEP = 250; // characters by which their beginning moves: if it always did, no cache would help

const propose = StateEffect.define();
const proposal = StateField.define({
  create: () => "",
  update(text, { effects, docChanged, selection }) {
    const proposed = effects.find((effect) => effect.is(propose));
    if (proposed) return proposed.value;
    return docChanged || selection ? "" : text;
  },
});
const shown = EditorView.decorations.compute([proposal, "selection"], (state) => {
  const widget = new Ghost(state.field(proposal));
  return widget.text ? Decoration.set(Decoration.widget({ widget, side: 1 }).range(cursor(state)))
    : Decoration.none;
});
const keys = keymap.of([{ key: "Tab", run: accept }, { key: "Escape", run: dismiss }]);

class Ghost extends WidgetType {
  /** @param {string} text */
  constructor(text) {
    super();
    this.text = text;
  }

  eq({ text }) {
    return text === this.text;
  }

  toDOM() {
    const element = document.createElement("span");
    element.className = "proposal";
    element.style.opacity = "0.5";
    element.textContent = this.text;
    return element;
  }
}

/** @param {import("octavo").Octavo} octavo with a model */
export function proposals(octavo) {
  return [proposal, shown, Prec.highest(keys), ViewPlugin.define((view) => new Proposer(view, octavo))];
}

/** Asks for a proposal whenever something was typed. */
class Proposer {
  #view;
  #octavo;
  #abort = new AbortController();

  constructor(view, octavo) {
    this.#view = view;
    this.#octavo = octavo;
  }

  update({ docChanged, selectionSet, state, transactions }) {
    if (!docChanged && !selectionSet) return;
    this.#abort.abort();
    if (transactions.some((transaction) => transaction.isUserEvent("input"))) this.#ask(state);
  }

  /** The editor is gone. */
  destroy() {
    this.#abort.abort();
  }

  async #ask(state) {
    const { signal } = (this.#abort = new AbortController());
    const before = textBefore(state);
    // A space is part of the word behind it: the model is asked before it, and says it itself.
    const prompt = before.trimEnd();
    const typed = before.slice(prompt.length);
    if (!prompt || typed.includes("\n")) return;
    const request = { prompt, max_tokens: MAX_TOKENS, stop: "\n", stream: true, signal };
    try {
      let text = "";
      for await (const { choices } of this.#octavo.completions.create(request)) {
        if (signal.aborted) return;
        text += choices[0].text;
        if (text.startsWith(typed)) this.#show(text.slice(typed.length));
      }
    } catch (error) {
      if (!signal.aborted) console.warn("Nothing could be proposed:", error);
    }
  }

  #show(text) {
    this.#view.dispatch({ effects: propose.of(text) });
  }
}

function textBefore(state) {
  const end = cursor(state);
  const start = Math.max(0, Math.ceil((end - MAX_CHARACTERS) / STEP) * STEP);
  return state.sliceDoc(start, end);
}

function cursor(state) {
  return state.selection.main.head;
}

function accept(view) {
  const text = view.state.field(proposal);
  if (!text) return false;
  const end = cursor(view.state);
  view.dispatch({
    changes: { from: end, insert: text },
    selection: { anchor: end + text.length },
    userEvent: "input.complete",
  });
  return true;
}

function dismiss(view) {
  if (!view.state.field(proposal)) return false;
  view.dispatch({ selection: view.state.selection }); // which ends the completion, too
  return true;
}
