// Passages of ordinary and hostile texts, their ranking, and what a message gets of them.

import assert from "node:assert/strict";

import { framed } from "../../web/attached.mjs";
import { cut, joined, linesOf, ranked } from "../../web/passages.mjs";
import { fitting, Search } from "../../web/search.mjs";
import { check, report } from "./checks.mjs";

const SIZE = 400_000; // characters of a hostile text
const MOST_MS = 4000; // for one: what takes the square of its length takes minutes
const PROSE = "The cat sits outside. A man is playing the guitar in front of a large crowd.\n";
const WORDS = ["a", "Haus", ". ", "\n", "\n\n", " ", "今天", "🙂", "\u200b", "e\u0301", "\ud800", "\udc00", "\r\n", "12345", "!"];
const HOSTILE = {
  nothing: "", spaces: " ", lines: "\n", "lines and spaces": "\n ", "one word": "a", "one sign": "!", dots: ". ",
  marks: "\u0301", emoji: "👩‍👩‍👧", "emoji and letters": "🙂a", Han: "今天天气很好。", "Thai": "กรุงเทพ", surrogates: "\ud800 \udc00",
  prose: PROSE, paragraphs: "The cat.\n\n", "Windows": "a b c. \r\n\r\n", "wide gaps": `\n${" ".repeat(1000)}`,
};

/** Passages are in order and trimmed, leave out nothing but spaces, cut no character, and are short. */
function checkCut(text) {
  const passages = cut(text);
  let [at, before] = [0, -1];
  for (const { start, end } of passages) {
    assert(start > before && end > at, "in order");
    assert(!/\S/.test(text.slice(at, start)), "nothing is left out");
    const passage = text.slice(start, end);
    assert(passage && passage === passage.trim(), "no spaces around");
    assert(end - start - passage.match(/\s*/g).join("").length <= 4 * 120, "short");
    for (const place of [start, end]) {
      const isCut = /[\ud800-\udbff]/.test(text[place - 1] ?? "") && /[\udc00-\udfff]/.test(text[place] ?? "");
      assert(!isCut, "no character is cut");
    }
    [at, before] = [end, start];
  }
  assert(!/\S/.test(text.slice(at)), "nothing is left out at the end");
  return passages;
}

for (const [name, unit] of Object.entries(HOSTILE)) {
  await check(name, () => {
    const text = unit.repeat(SIZE / (unit.length || 1));
    const start = process.cpuUsage();
    checkCut(text);
    assert(process.cpuUsage(start).user / 1000 < MOST_MS, "in time");
  });
}

let seed = 1;
const draw = (count) => (seed = (seed * 48271) % 2147483647) % count;
for (let i = 0; i < 300; i++) {
  const text = Array.from({ length: draw(800) }, () => WORDS[draw(WORDS.length)]).join("");
  await check(`chance ${i}`, () => checkCut(text));
}

await check("sentences stay whole, and passages overlap", () => {
  const text = PROSE.repeat(100);
  const [first, second] = checkCut(text).map(({ start, end }) => text.slice(start, end));
  assert(first.startsWith("The cat") && /[.]$/.test(first) && /^(The cat|A man)/.test(second));
  const [one, two] = cut(text);
  assert(two.start < one.end && two.start > one.start);
});

await check("half full passages end with their paragraph", () => {
  const paragraph = "w1 ".repeat(40).trim();
  const text = `Title\n\n${paragraph}\n \n${paragraph}\n\nshort\n\nends`;
  assert.deepEqual(cut(text).map(({ start, end }) => text.slice(start, end)), [
    `Title\n\n${paragraph}`, paragraph, "short\n\nends",
  ]);
});

await check("lines", () => {
  const text = "a\nb\r\nc\rd\n";
  const at = (sign) => linesOf(text, { start: text.indexOf(sign), end: text.indexOf(sign) + 1 });
  assert.deepEqual([at("a"), at("b"), at("c"), at("d")], [[1, 1], [2, 2], [3, 3], [4, 4]]);
  assert.deepEqual(linesOf(text, { start: 0, end: text.indexOf("c") + 1 }), [1, 3]);
});

await check("the nearest first", () => {
  const vectors = [[1, 0], [0.6, 0.8], [-1, 0], [0, 1]].map((each) => Float32Array.from(each));
  assert.deepEqual(ranked(vectors, [0, 1]).map(({ at }) => at), [3, 1, 0, 2]);
  assert.equal(ranked(vectors, [0, 1])[0].similarity, 1);
});

await check("spans that touch are joined", () => {
  const spans = [[20, 30, 0.1], [0, 5, 0.9], [4, 10, 0.95], [10, 12, 0.2], [13, 14, 0.3]];
  const found = joined(spans.map(([start, end, similarity]) => ({ start, end, similarity })));
  assert.deepEqual(found.map(({ start, end, similarity }) => [start, end, similarity]), [
    [0, 12, 0.95], [13, 14, 0.3], [20, 30, 0.1],
  ]);
});

await check("what fits, in the order of the texts", async () => {
  const file = (name) => ({ name, size: 0, text: "one\ntwo\nthree\nfour" });
  const [a, b] = [file("a.txt"), file("b.txt")];
  const hits = [[b, 8, 13], [a, 14, 18], [a, 0, 7], [b, 4, 7], [a, 4, 7]].map(([file, start, end], i) => ({
    file, start, end, similarity: 1 - i / 10,
  }));
  const count = async (text) => (text.includes("four") ? 100 : 10);
  const found = await fitting(hits, 4, 30, count);
  assert.deepEqual(found.map(framed), [
    'File "b.txt", lines 2-2:\n```\ntwo\n```', 'File "b.txt", lines 3-3:\n```\nthree\n```',
    'File "a.txt", lines 1-2:\n```\none\ntwo\n```',
  ]);
  assert.deepEqual(found[1].place, { first: 3, last: 3, similarity: 1 });
  assert.deepEqual(await fitting(hits, 4, 9, count), []);
});

/** An encoder that counts letters: what it was asked, and when it stops. */
function engine(stopsAt = Infinity) {
  const asked = [];
  const create = async ({ input, model, device, signal }) => {
    assert.deepEqual([model, device], ["m", "cpu"]);
    asked.push(...input);
    if (signal.aborted || asked.length > stopsAt) throw Object.assign(new Error("stopped"), { code: "request.cancelled" });
    const vectorOf = (text) => ["x", "y", "z"].map((sign) => text.split(sign).length - 1);
    return { data: input.map((text) => ({ embedding: vectorOf(text).map((n, _, all) => n / Math.hypot(...all)) })) };
  };
  return { asked, octavo: { embeddings: { create } } };
}

await check("what was embedded before a stop is kept", async () => {
  const paragraphs = Array.from({ length: 50 }, (_, i) => (i === 33 ? "z " : i % 2 ? "x " : "y ").repeat(70));
  const file = { name: "f", size: 0, text: paragraphs.join("\n\n") };
  const { asked, octavo } = engine();
  const search = new Search(octavo, { model: "m", device: "cpu" });
  const told = [];
  const stop = new AbortController();
  const waiting = { signal: stop.signal, onProgress: ({ loaded }) => told.push(loaded) && loaded >= 32 && stop.abort() };
  await assert.rejects(search.hits([file], "zzz", waiting), { code: "request.cancelled" });
  assert.deepEqual(told, [0, 16, 32]);
  const before = asked.length;
  const hits = await search.hits([file], "z\ud800", { signal: new AbortController().signal, onProgress: () => {} });
  assert.equal(asked.length - before, 1 + 50 - 32);
  assert(asked[before].isWellFormed());
  assert.equal(file.text.slice(hits[0].start, hits[0].end), paragraphs[33].trim());
  assert(hits[0].similarity > 0.999 && hits[1].similarity === 0 && hits.length === 50);
  await assert.rejects(search.hits([file], " \n", waiting), { code: "search.no_question" });
});

report();
