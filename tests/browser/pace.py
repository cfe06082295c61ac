"""Answers as slow as a test wants them, and what the page asked for."""

from __future__ import annotations

from tests.tiny import HELLO

# A question that the model answers at length.
LONG = HELLO[0]["content"]
# Notes requests. With `ms`, real text comes character by character, with that much time between;
# with `endless`, it does not end.
PACE = """({ms = 0, endless = false}) => {
  const { completions } = octavo.chat;
  window.create ??= completions.create;
  window.sent = [];
  completions.create = (options) => {
    if (!options.stream) return window.create(options);
    window.sent.push(structuredClone(options));
    const never = {0: -100, 2: -100};  // the tiny model's tokens that end an answer
    const more = {max_tokens: 1 << 20, context_full: 'slide', logit_bias: never};
    const stream = window.create(endless ? {...options, ...more} : options);
    if (!ms) return stream;
    return (async function* () {
      for await (const chunk of stream) {
        const [choice] = chunk.choices;
        for (const content of [...(choice.delta.content ?? '')]) {
          yield {...chunk, choices: [{...choice, delta: {content}}]};
          await new Promise((done) => setTimeout(done, ms));
        }
        if (!choice.delta.content) yield chunk;
      }
    })();
  };
}"""
