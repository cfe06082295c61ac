"""The JavaScript API and the model store where requests cross, repeat or find the site changed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import answers
from tests.browser.chat import TINY_ON_CPU, Chat, Open
from tests.browser.conftest import cut, link_site
from tests.conftest import BROWSER_FLAGS, ROOT, StaticServer
from tests.tiny import RAIN, SHIP, TINY

pytestmark = pytest.mark.browser
OTHER_FILE = ROOT / "tests/golden/tiny_qwen2.gguf"


@pytest.fixture
def tiny(open_chat: Open) -> Chat:
    return open_chat(TINY_ON_CPU).wait_for("ready")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("how", ["stop", "reset", "abort"])
def test_an_answer_is_stopped_in_the_moment_it_is_asked_for(
    tiny: Chat, how: str, stream: bool
) -> None:
    reason, count = tiny.page.evaluate(
        """async ([messages, how, stream]) => {
          const controller = new AbortController();
          const {signal} = controller;
          const options = {messages, max_tokens: 200, stream, signal};
          const answer = octavo.chat.completions.create(options);
          const stopped = how === 'abort' ? controller.abort() : octavo[how]();
          let last;
          if (stream) for await (const chunk of answer) last = chunk;
          else last = await answer;
          await stopped;
          return [last.choices[0].finish_reason, last.octavo.ids.length];
        }""",
        [SHIP["messages"], how, stream],
    )
    assert reason == "cancelled"
    assert count < 200
    answers(tiny)


# Loads again and asks meanwhile; `how` says what ends the waiting answer.
ASK_WHILE_LOADING = """async ([messages, how]) => {
  const controller = new AbortController();
  const {signal} = controller;
  const loading = octavo.load();
  const load = loading.then(() => 'loaded', (error) => error.code);
  const later = how === 'stop after load' && loading.then(() => octavo.stop());
  const answer = octavo.chat.completions.create({messages, max_tokens: 200, signal});
  if (how === 'abort') controller.abort();
  await (later || octavo[how]?.());
  const {choices: [{message, finish_reason}], octavo: {ids}} = await answer;
  return [await load, message.content, finish_reason, ids];
}"""


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("stop", "request.cancelled"),
        ("unload", "request.cancelled"),
        ("reset", "loaded"),
        ("abort", "loaded"),
    ],
)
def test_an_answer_that_waits_for_a_load_is_stopped(tiny: Chat, how: str, outcome: str) -> None:
    ended = tiny.page.evaluate(ASK_WHILE_LOADING, [SHIP["messages"], how])
    assert ended == [outcome, "", "cancelled", []]
    if outcome != "loaded":
        tiny.page.evaluate("octavo.load()")
    answers(tiny)


def test_a_stop_right_after_the_load_finds_the_answer_that_waited(tiny: Chat) -> None:
    ended = tiny.page.evaluate(ASK_WHILE_LOADING, [SHIP["messages"], "stop after load"])
    assert ended == ["loaded", "", "cancelled", []]
    answers(tiny)


def test_a_stop_before_the_engine_has_started(tiny: Chat) -> None:
    """What is asked of a worker that still starts waits there, and is ended there."""
    found = tiny.page.evaluate(
        """async (messages) => {
          const client = new octavo.constructor({device: 'cpu'});
          const abort = new AbortController();
          const {signal} = abort;
          const model = 'models/none/manifest.json';
          const answer = client.chat.completions.create({messages, signal});
          const vectors = client.embeddings.create({model, input: 'a', signal});
          setTimeout(() => abort.abort(), 20);
          const code = await vectors.catch(({code}) => code);
          const {choices: [{finish_reason}]} = await answer;
          const more = client.embeddings.create({model, input: 'a'}).catch(({code}) => code);
          const {stopped} = await client.stop();
          client.close();
          return [finish_reason, code, stopped, await more];
        }""",
        SHIP["messages"],
    )
    assert found == ["cancelled", "request.cancelled", True, "request.cancelled"]


def test_answers_are_generated_at_the_same_time_and_stopped_one_by_one(tiny: Chat) -> None:
    first, second, stopped = tiny.page.evaluate(
        """async ([one, two]) => {
          const ask = (messages, options) =>
            octavo.chat.completions.create({messages, max_tokens: 60, ...options});
          const controller = new AbortController();
          const {signal} = controller;
          const endless = ask(one, {max_tokens: 400, signal, stream: true});
          const both = Promise.all([ask(one), ask(two)]);
          let last;
          for await (const chunk of endless) {
            last = chunk;
            if (chunk.octavo.num_tokens > 3) controller.abort();
          }
          const [a, b] = await both;
          return [a.octavo.ids, b.octavo.ids, last.choices[0].finish_reason];
        }""",
        [SHIP["messages"], RAIN["messages"]],
    )
    assert first == SHIP["ids"][:60]
    assert second == RAIN["ids"][:60]
    assert stopped == "cancelled"
    assert tiny.status()["answers"] == 0


def test_a_conversation_is_kept_and_forked(tiny: Chat) -> None:
    """Each branch is answered as if its messages had been given, out of what they share."""
    found = tiny.page.evaluate(
        """async ([messages, more]) => {
          const create = (options) => octavo.chat.completions.create({...options, max_tokens: 9});
          const whole = (said, answer) => [...said, answer.choices[0].message];
          const first = octavo.conversation({messages: messages.slice(0, -1), max_tokens: 9});
          const question = messages.at(-1);
          const answer = await first.send(question);
          const begun = [...first.messages];
          const other = first.fork();
          const anew = first.fork(messages.length - 1);
          first.fork().messages.push(question);  // is nobody else's
          const stream = first.send(more);
          let refused;
          try { first.send(more); } catch ({code}) { refused = code; }
          const chunks = [];
          for await (const chunk of other.send("And?", {stream: true})) chunks.push(chunk);
          await stream;
          const failed = await other.send("x".repeat(20000)).catch(({code}) => code);
          await octavo.reset();
          const asked = [...begun, {role: "user", content: "And?"}];
          const plain = await create({messages: asked});
          return {
            ids: answer.octavo.ids,
            begun: JSON.stringify(begun) === JSON.stringify(whole(messages, answer)),
            lengths: [first, other, anew].map(({messages}) => messages.length - begun.length),
            refused, failed,
            cached: chunks.at(-1).usage.cached_tokens,
            same: JSON.stringify(chunks.at(-1).octavo.ids) === JSON.stringify(plain.octavo.ids),
            kept: JSON.stringify(other.messages) === JSON.stringify(whole(asked, plain)),
          };
        }""",
        [SHIP["messages"], RAIN["messages"][-1]["content"]],
    )
    assert found.pop("ids") == SHIP["ids"][:9]
    assert found.pop("cached") >= 16
    assert found == {
        "begun": True,
        "lengths": [2, 2, -2],
        "refused": "engine.busy",
        "failed": "prompt.too_long",
        "same": True,
        "kept": True,
    }


# Calls that no type checker would let pass.
WRONG = """[
  () => octavo.load("models/tiny/manifest.json"),
  () => octavo.load(5),
  () => octavo.load({model: "models/tiny/manifest.json", context: NaN}),
  () => octavo.chat.completions.create(),
  () => octavo.chat.completions.create("hi"),
  () => octavo.chat.completions.create({messages: [null]}),
  () => octavo.chat.completions.create({messages: [{role: "user", content: [undefined]}]}),
  () => octavo.chat.completions.create({messages: [{role: "user", content: [{type: "text"}]}]}),
  () => octavo.chat.completions.create({messages: HI, signal: "x"}),
  async () => {
    for await (const _ of octavo.completions.create({prompt: "a", signal: {}, stream: true}));
  },
  () => octavo.chat.completions.create({messages: HI, temperature: NaN}),
  () => octavo.chat.completions.create({messages: HI, n: 2}),
  () => octavo.completions.create(null),
  () => octavo.embeddings.create(),
  () => octavo.embeddings.create({model: "x", input: "a", signal: 1}),
  () => octavo.embeddings.create({model: "x", input: "a", encoding_format: "hex"}),
  () => octavo.inspect(),
  () => octavo.inspect({messages: "hi"}),
  () => octavo.measure(7),
  () => octavo.unload("tiny"),
  () => octavo.tokenize("a", "tiny"),
  () => octavo.conversation("hi"),
  () => octavo.conversation({messages: "hi"}),
  () => octavo.conversation().send(),
  () => octavo.load({model: "http://["}),
  () => octavo.load({devcie: "cpu"}),
  () => octavo.load({remote: {url: "https://example.com", kye: "x"}}),
  () => octavo.chat.completions.create({messages: HI, temprature: 1}),
  () => octavo.chat.completions.create({messages: HI, singal: new AbortController().signal}),
  () => octavo.completions.create({prompt: "a", messages: HI}),
  () => octavo.completions.create({prompt: "a", top_logprob: 1}),
  () => octavo.embeddings.create({model: "x", input: "a", dimensions: 3}),
  () => octavo.inspect({prompt: "a", tpo: 1}),
  () => octavo.measure({prefil: 1}),
  () => octavo.unload({modle: "x"}),
  () => octavo.tokenize("a", {modle: "x"}),
  () => octavo.detokenize([5], {modle: "x"}),
  () => octavo.conversation({temprature: 1}).send("hi"),
  () => octavo.conversation().send("hi", {messages: HI}),
  () => octavo.conversation().send("hi", {continues: 1}),
  () => octavo.load({id: 5}),
  () => octavo.load({kind: "stop"}),
  () => octavo.load({model: "models/tiny/manifest.json"}, 7),
  () => octavo.embeddings.create({model: "x", input: "a", id: 5}),
  () => octavo.chat.completions.create({messages: HI, id: 5}),
  () => octavo.chat.completions.create({messages: HI, continues: 1}),
  () => octavo.chat.completions.create({messages: HI, tool_choice: "required"}),
  () => octavo.chat.completions.create({messages: HI, stream: "yes"})[Symbol.asyncIterator]().next()
    .then(() => octavo.chat.completions.create({messages: HI, stream: 0})),
  () => new octavo.constructor("cpu"),
  () => new octavo.constructor({share: "tab"}),
]"""
# What code for OpenAI's client may say; it changes nothing here.
HINTS = """{
  user: "me", store: true, metadata: {a: "b"}, stream_options: {include_usage: true},
  service_tier: "auto", parallel_tool_calls: false, reasoning_effort: "low", verbosity: "low",
  prompt_cache_key: "a", safety_identifier: "b", prediction: {type: "content", content: "c"},
}"""


def test_wrong_types_are_refused(tiny: Chat) -> None:
    found = tiny.page.evaluate(
        f"""async () => {{
          const HI = [{{role: "user", content: "Hi"}}];
          const neutral = {{n: 1, best_of: 1, echo: false, stop: null, tools: undefined}};
          const hints = {HINTS};
          const request = {{messages: HI, max_tokens: 1, ...neutral, ...hints}};
          await octavo.chat.completions.create(request);
          await octavo.completions.create({{prompt: "a", max_tokens: 1, user: "me"}});
          const codes = {{}};
          for (const call of {WRONG}) {{
            const outcome = (async () => call())();
            codes[call] = await outcome.then(() => "none", (error) => error.code ?? `${{error}}`);
          }}
          const load = octavo.load({{model: 7}});
          await new Promise((done) => setTimeout(done, 50));
          const blob = await octavo.load({{model: new Blob(["GGUF"])}}).catch((e) => e.message);
          codes["a Blob is told from a file"] = /a File/.test(blob) ? "request.invalid" : blob;
          codes["is heard of late, and the page does not throw"] = await load.catch((e) => e.code);
          return codes;
        }}"""
    )
    assert {call: code for call, code in found.items() if code != "request.invalid"} == {}


def test_a_load_that_fails_keeps_no_answer_of_a_model_that_is_there(tiny: Chat) -> None:
    named, unnamed = tiny.page.evaluate(
        """async (messages) => {
          const load = octavo.load({model: 'models/none/manifest.json'}).catch(({code}) => code);
          const ask = (options) =>
            octavo.chat.completions.create({messages, max_tokens: 5, ...options});
          const named = ask({model: 'models/tiny/manifest.json'});
          const unnamed = ask().catch(({code}) => code);  // may have meant the other
          await load;
          return [(await named).octavo.ids, await unnamed];
        }""",
        SHIP["messages"],
    )
    assert (named, unnamed) == (SHIP["ids"][:5], "shard.network")


@pytest.mark.parametrize("when", ["at once", "after the refusal"])
def test_an_answer_waits_for_the_load_that_goes_on(tiny: Chat, when: str) -> None:
    first, second, ids = tiny.page.evaluate(
        """async ([messages, when]) => {
          const outcome = (load) => load.then(() => 'loaded', (error) => error.code);
          const first = outcome(octavo.load());
          const second = outcome(octavo.load());
          if (when !== 'at once') await second;
          const answer = await octavo.chat.completions.create({messages, max_tokens: 5});
          return [await first, await second, answer.octavo.ids];
        }""",
        [SHIP["messages"], when],
    )
    assert (first, second) == ("loaded", "engine.busy")
    assert ids == SHIP["ids"][:5]


@dataclass
class Site:
    """A site of the test's own, which it may change."""

    root: Path
    server: StaticServer
    context: Any

    def open(self, query: str) -> Chat:
        return Chat(self.context.new_page(), self.server, f"{self.server.url}/?{query}").open()

    def model_requests(self) -> list[str]:
        """Paths of the catalogue, manifests and shards that were asked for, sorted."""
        return sorted(p for p in self.server.requests if re.match(r"/models(/|\.json)", p))


@pytest.fixture
def own_site(tmp_path: Path, plain_chromium: Any) -> Iterator[Site]:
    root = link_site(tmp_path / "root")
    server = StaticServer(root)
    context = plain_chromium.new_context(service_workers="block")
    yield Site(root, server, context)
    context.close()
    server.close()


def replace_model(site: Site, data: bytes) -> None:
    folder = site.root / "models/tiny"
    shutil.rmtree(folder)
    source = site.root / "new.gguf"
    source.write_bytes(data)
    cut(source, folder)


EVICT = """async (name) => {
  const cache = await caches.open('octavo-models');
  for (const {url} of await cache.keys()) if (url.endsWith(name)) await cache.delete(url);
}"""


@pytest.mark.parametrize(
    ("data", "evicted", "architecture"),
    [
        (OTHER_FILE.read_bytes(), "/001.bin", "qwen2"),
        (TINY.read_bytes() + bytes(64), "/003.bin", "llama"),
    ],
    ids=["another model", "a longer last shard"],
)
def test_a_replaced_model_is_fetched_anew_when_its_old_shards_are_gone(
    own_site: Site, data: bytes, evicted: str, architecture: str
) -> None:
    chat = own_site.open(TINY_ON_CPU).wait_for("ready")
    replace_model(own_site, data)
    chat.page.reload()
    assert chat.wait_for("ready").status()["model"]["bytes"] == TINY.stat().st_size
    chat.page.evaluate(EVICT, evicted)
    chat.page.reload()
    model = chat.wait_for("ready").status()["model"]
    assert (model["architecture"], model["bytes"]) == (architecture, len(data))
    own_site.server.requests.clear()
    chat.page.reload()
    assert chat.wait_for("ready").status()["model"] == model
    assert own_site.model_requests() == ["/models.json"], "the new one is kept"


def test_a_model_that_stays_damaged_is_given_up(own_site: Site) -> None:
    chat = own_site.open(TINY_ON_CPU).wait_for("ready")
    shard = own_site.root / "models/tiny/001.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    chat.page.evaluate(EVICT, "/001.bin")
    chat.page.reload()
    assert chat.error_code() == "shard.hash"


@pytest.fixture
def default_tiny(own_site: Site) -> Site:
    """The tiny model is the catalogue's only one."""
    entry = {"id": "tiny", "name": "Tiny", "address": "models/tiny/manifest.json", "sha256": ""}
    catalogue = own_site.root / "models.json"
    catalogue.unlink()  # a link to the built one
    catalogue.write_text(json.dumps({"default": "tiny", "models": [entry]}), encoding="utf-8")
    return own_site


MODEL_FILES = [
    "/models.json",
    "/models/tiny/000.bin",
    "/models/tiny/001.bin",
    "/models/tiny/002.bin",
    "/models/tiny/003.bin",
    "/models/tiny/manifest.json",
]


def test_the_default_model_by_all_its_names_is_one_download(default_tiny: Site) -> None:
    chat = default_tiny.open("model=none/manifest.json")  # the page itself loads nothing
    chat.error_code()
    default_tiny.server.requests.clear()
    sizes = chat.page.evaluate(
        """async () => {
          const {ShardStore} = await import(new URL('worker/shards.mjs', document.baseURI));
          const store = new ShardStore(new URL('models.json', document.baseURI).href);
          const url = 'models/tiny/manifest.json';
          const names = ['', undefined, null, 'tiny', url, new URL(url, document.baseURI).href];
          const texts = await Promise.all(names.map((name) => store.open(name)));
          texts.push(await store.open('')); // and later
          if (new Set(texts).size !== 1) throw new Error('not the same manifest');
          const sizes = [];
          for (let i = 0; i < 4; i++) sizes.push((await store.read(i)).length);
          return sizes;
        }"""
    )
    assert sum(sizes) == TINY.stat().st_size
    assert default_tiny.model_requests() == MODEL_FILES


def test_a_page_without_a_model_in_its_address_fetches_nothing_twice(default_tiny: Site) -> None:
    default_tiny.open("device=cpu&context=512").wait_for("ready")
    assert default_tiny.model_requests() == MODEL_FILES


def test_shards_of_broken_words_are_refused(own_site: Site) -> None:
    folder = own_site.root / "models/tiny"
    shutil.rmtree(folder)
    cut(TINY, folder, shard_size=39_998)
    chat = own_site.open(TINY_ON_CPU)
    assert chat.error_code() == "manifest.invalid"
    parse = """async (sizes) => {
      const {parseManifest} = await import(new URL('worker/manifest.mjs', document.baseURI));
      const shards = sizes.map((size, i) => ({name: `${i}.bin`, size, sha256: '0'.repeat(64)}));
      const size = sizes.reduce((sum, size) => sum + size);
      try {
        return parseManifest(JSON.stringify({size, shards}), false).size;
      } catch (error) {
        return error.code;
      }
    }"""
    assert chat.page.evaluate(parse, [8, 6, 8]) == "manifest.invalid"
    assert chat.page.evaluate(parse, [8, 8, 6]) == 22, "the last one may have any size"


def test_an_insecure_address_is_named_as_the_reason(
    server: StaticServer, playwright: Any, chromium_path: str
) -> None:
    rule = "--host-resolver-rules=MAP octavo.test 127.0.0.1"
    browser = playwright.chromium.launch(executable_path=chromium_path, args=[*BROWSER_FLAGS, rule])
    try:
        url = f"http://octavo.test:{server.port}/?{TINY_ON_CPU}"
        chat = Chat(browser.new_page(), server, url).open()
        assert chat.error_code() == "internal"
        assert "https or from localhost" in chat.hook("error").inner_text()
        assert chat.state == "error"
    finally:
        browser.close()


def test_three_hundred_answers_leave_nothing_behind(tiny: Chat) -> None:
    """Stopped, left and reset at random: memory and blocks stay level, and the engine is right."""
    levels = tiny.page.evaluate(
        """async (messages) => {
          const levels = [];
          for (let i = 0; i < 300; i++) {
            const stream = octavo.chat.completions.create({messages, max_tokens: 20, stream: true});
            for await (const chunk of stream) {
              if (i % 3 === 0 && chunk.octavo.num_tokens > i % 7) octavo.stop();
              if (i % 5 === 0 && chunk.octavo.num_tokens > 1) break;
            }
            if (i % 4 === 0) await octavo.reset();
            if (i % 10 === 9) levels.push(await octavo.status());
          }
          return levels;
        }""",
        SHIP["messages"],
    )
    assert {level["memory_bytes"] for level in levels} == {levels[0]["memory_bytes"]}
    for level in levels:
        kv = level["kv"]
        assert (level["state"], level["answers"], kv["used_blocks"]) == ("ready", 0, 0)
        assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]
    answers(tiny)


def test_the_options_of_the_sampler(tiny: Chat) -> None:
    def ask(**options: Any) -> Any:
        return tiny.complete(SHIP["messages"], max_tokens=9, **options)

    assert len(set(ask(frequency_penalty=100)["octavo"]["ids"])) == 9
    assert ask(logit_bias={"77": 100})["octavo"]["ids"] == [77] * 9
    one = ask(temperature=2, top_k=1)
    assert one["octavo"]["ids"] == SHIP["ids"][:9]
    told = ask(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["id"] for entry in told] == SHIP["ids"][:9]
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0 for entry in told)
    assert one["choices"][0]["logprobs"] is None
    with pytest.raises(Exception, match="top_p should be a number"):
        ask(top_p=0)
    answers(tiny)
