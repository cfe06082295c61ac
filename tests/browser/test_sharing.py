"""Clients that share an engine: of one page and of several tabs, also when its owner goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StaticServer
from tests.tiny import CHATS

pytestmark = pytest.mark.browser
COUNT = 200  # tokens of each golden answer

# Makes clients, by name; `stream` has what came of an answer in `answers`.
SETUP = """async () => {
  const {Octavo} = await import('/client.mjs');
  window.clients = {};
  window.answers = {};
  window.news = [];
  window.make = (name, options) => {
    const client = clients[name] = new Octavo(options);
    client.addEventListener('recovery', ({detail}) => news.push(`${name} ${detail.state}`));
  };
  const tiny = {model: '/models/tiny/manifest.json', device: 'cpu', activations: 'f32'};
  window.load = (name, options) => clients[name].load({...tiny, context: 512, ...options});
  window.stream = (name, options) => {
    const answer = answers[name] = {text: '', ids: null, finish: null, code: null};
    (async () => {
      const stream = clients[name].chat.completions.create({...options, stream: true});
      for await (const {choices: [{delta, finish_reason}], octavo} of stream) {
        answer.text += delta.content ?? '';
        answer.ids = octavo.ids ?? null;
        answer.finish = finish_reason;
      }
    })().catch(({code, message}) => Object.assign(answer, {code, message}));
  };
}"""


class Tab:
    """A page without an engine of its own, and the clients that it makes."""

    def __init__(self, context: Any, url: str) -> None:
        self.page = context.new_page()
        self.page.goto(url)
        self.page.evaluate(SETUP)

    def make(self, name: str, share: object = True, **options: Any) -> None:
        self.page.evaluate("([name, o]) => make(name, o)", [name, {"share": share, **options}])

    def load(self, name: str, **options: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.page.evaluate(
            "([name, options]) => load(name, options)", [name, options]
        )
        return result

    def call(self, name: str, method: str, *args: Any) -> Any:
        return self.page.evaluate(
            "([name, method, args]) => clients[name][method](...args)", [name, method, list(args)]
        )

    def stream(self, name: str, prompt: dict[str, Any], max_tokens: int = COUNT) -> None:
        options = {"messages": prompt["messages"], "max_tokens": max_tokens}
        self.page.evaluate("([name, options]) => stream(name, options)", [name, options])

    def text(self, name: str, prompt: dict[str, Any]) -> str:
        """The whole answer, at once."""
        options = {"messages": prompt["messages"], "max_tokens": COUNT}
        ask = "([name, options]) => clients[name].chat.completions.create(options)"
        answer = self.page.evaluate(ask, [name, options])
        return str(answer["choices"][0]["message"]["content"])

    def until(self, expression: str, seconds: float = 60) -> Any:
        for _ in range(int(seconds / 0.02)):
            if value := self.page.evaluate(expression):
                return value
            self.page.wait_for_timeout(20)
        raise AssertionError(f"never true: {expression}: {self.page.evaluate('answers')}")

    def begun(self, name: str) -> None:
        self.until(f"answers.{name}.text.length > 10 || answers.{name}.code")

    def ended(self, name: str) -> dict[str, Any]:
        self.until(f"answers.{name}.finish || answers.{name}.code")
        answer: dict[str, Any] = self.page.evaluate(f"answers.{name}")
        return answer

    def engines(self) -> int:
        """Workers of this page that run an engine."""
        return len([w for w in self.page.workers if "worker.mjs" in w.url])

    def until_engines(self, count: int) -> None:
        for _ in range(500):
            if self.engines() == count:
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"{self.engines()} engines, not {count}")


@pytest.fixture
def context(plain_chromium: Any) -> Iterator[Any]:
    context = plain_chromium.new_context()
    yield context
    context.close()


@pytest.fixture
def open_tab(context: Any, server: StaticServer) -> Callable[[], Tab]:
    return lambda: Tab(context, f"{server.url}/models.json")


def test_clients_of_one_page(open_tab: Callable[[], Tab], server: StaticServer) -> None:
    """One download and one copy for two; neither sees what the other does."""
    tab = open_tab()
    tab.make("a", "page")
    tab.make("b", "page")
    both = tab.page.evaluate("Promise.all([load('a'), load('b')])")
    assert both[0]["memory_bytes"] == both[1]["memory_bytes"]
    tab.until_engines(1)
    shards = [path for path in server.requests if "models/tiny/" in path and ".bin" in path]
    assert len(shards) == len(set(shards)) > 0
    status = tab.call("a", "status")
    assert (status["clients"], len(status["models"])) == (2, 1)

    tab.stream("a", CHATS[0])
    tab.stream("b", CHATS[1])
    tab.begun("b")
    assert tab.call("b", "stop") == {"stopped": True}
    assert tab.ended("b")["finish"] == "cancelled"
    assert tab.call("b", "reset") == {}
    tab.call("b", "close")
    assert tab.ended("a")["ids"] == CHATS[0]["ids"][:COUNT]
    assert tab.call("a", "status")["clients"] == 1
    # Another model takes the engine along, as without sharing.
    tab.load("a", context=256)
    tab.until_engines(1)
    assert tab.call("a", "status")["model"]["context"] == 256
    tab.call("a", "close")
    tab.until_engines(0)


def test_the_tab_with_the_engine_is_closed(open_tab: Callable[[], Tab]) -> None:
    """Answers of other tabs go on where their text ended."""
    tabs = [open_tab() for _ in range(3)]
    for tab in tabs:
        tab.make("c")
        tab.load("c")
    for tab, count in zip(tabs, (1, 0, 0), strict=True):
        tab.until_engines(count)
    owner, *others = tabs
    assert others[0].call("c", "status")["clients"] == 3
    for tab, prompt in zip(others, CHATS, strict=False):
        tab.stream("c", prompt)
    for tab in others:
        tab.begun("c")
        assert tab.page.evaluate("answers.c.finish") is None, "too fast to be interrupted"
    owner.page.close()
    for tab, prompt in zip(others, CHATS, strict=False):
        assert tab.ended("c")["ids"] == prompt["ids"][:COUNT]
        assert tab.ended("c")["text"] == tab.text("c", prompt)
        assert tab.page.evaluate("news") == ["c moved", "c ready"]
    assert sorted(tab.engines() for tab in others) == [0, 1]
    assert others[0].call("c", "status")["clients"] == 2


# As if the engine had said something else to the clients of other tabs.
FALSE_TEXT = """async () => {
  const {held} = await navigator.locks.query();
  const ids = [...Array(20).keys()];
  const deltas = ids.map((id) => ({id, kind: 'delta', text: 'FALSE', num_tokens: 1}));
  for (const {name} of held.filter((lock) => lock.name.startsWith('octavo-client:'))) {
    new BroadcastChannel(name).postMessage({kind: 'deltas', deltas});
  }
}"""


def test_a_frozen_tab_gives_its_engine_up(open_tab: Callable[[], Tab]) -> None:
    """And asks for its answers again when it goes on; one that continued another, or whose text
    comes out differently, cannot go on."""
    first, second = open_tab(), open_tab()
    for tab in (first, second):
        tab.make("c")
        tab.load("c")
    options = {"messages": CHATS[1]["messages"], "max_tokens": 5}
    handle = first.page.evaluate(
        "(o) => clients.c.chat.completions.create(o).then(({octavo}) => octavo.handle)", options
    )
    first.stream("c", CHATS[0])
    first.begun("c")
    first.page.evaluate("void (clients.d = clients.c)")
    first.page.evaluate("(continues) => stream('d', {continues})", handle)
    second.stream("c", CHATS[1])
    second.begun("c")
    first.page.evaluate(FALSE_TEXT)
    second.until("answers.c.text.includes('FALSE')")
    first.page.evaluate("void document.dispatchEvent(new Event('freeze'))")
    second.until_engines(1)
    assert second.call("c", "status")["clients"] == 1
    assert first.engines() == 0
    first.page.evaluate("void document.dispatchEvent(new Event('resume'))")
    assert first.ended("d")["code"] == "engine.moved"
    assert first.ended("c")["ids"] == CHATS[0]["ids"][:COUNT]
    assert second.ended("c")["code"] == "engine.moved"
    assert second.call("c", "status")["clients"] == 2

    # An engine that fails, fails for all; the next load starts another.
    first.stream("c", CHATS[0])
    first.begun("c")
    [worker] = [worker for worker in second.page.workers if "worker.mjs" in worker.url]
    worker.evaluate("void setTimeout(() => { throw new Error('planted'); })")
    assert first.ended("c")["code"] == "internal"
    second.until_engines(0)
    first.load("c")
    assert first.call("c", "status")["clients"] == 1


# A model from disk, as two tabs are given the same file.
FILE = """async ([name, count]) => {
  const parts = [];
  for (let i = 0; i < count; i++) {
    const shard = await fetch(`/models/tiny/${String(i).padStart(3, '0')}.bin`);
    parts.push(await shard.blob());
  }
  return load(name, {model: new File(parts, 'tiny.gguf', {lastModified: 5})});
}"""


@pytest.mark.by_hand
def test_tabs_come_and_crash(open_tab: Callable[[], Tab], site: Path) -> None:
    """The file of a tab that is gone is read from the next one's."""
    count = len(list((site / "models/tiny").glob("*.bin")))
    tabs: list[Tab] = []
    for i in range(6):
        tab = open_tab()
        tab.make("c")
        tab.page.evaluate(FILE, ["c", count])
        tabs.append(tab)
        assert tab.call("c", "status")["clients"] == len(tabs)
        prompt = CHATS[i % 2]
        tab.stream("c", prompt)
        tab.begun("c")
        if i % 2 == 0:
            continue
        owner = tabs.pop(0)
        if i % 4 == 1:
            with contextlib.suppress(Exception):  # the page is gone
                owner.page.goto("chrome://crash", timeout=2000)
        owner.page.close()
        assert tab.ended("c")["ids"] == prompt["ids"][:COUNT]
    assert sorted(tab.engines() for tab in tabs)[:-1] == [0] * (len(tabs) - 1)


@pytest.mark.by_hand
def test_who_shares_and_who_does_not(open_tab: Callable[[], Tab], server: StaticServer) -> None:
    first, second = open_tab(), open_tab()
    first.make("page", "page")
    first.make("site")
    second.make("page", "page")
    second.make("site")
    second.make("alone", False)
    second.make("other", workerUrl=f"{server.url}/worker/worker.mjs?other")
    for tab, names in ((first, ["page", "site"]), (second, ["page", "site", "alone", "other"])):
        for name in names:
            tab.load(name)
    names = ["page", "site", "alone", "other"]
    assert [second.call(n, "status").get("clients") for n in names] == [1, 2, None, 1]
    second.load("site", context=256)  # goes
    assert first.call("site", "status")["clients"] == 1
    for tab in (first, second):  # they meet by the budget
        tab.load("site", memory_bytes=10**9)
    second.load("site", memory_bytes=10**9, model="/models/tiny/manifest.json?2")
    status = first.call("site", "status")
    assert status["clients"] == 2
    first.stream("site", CHATS[0])
    assert first.ended("site")["ids"] == CHATS[0]["ids"][:COUNT]


def test_a_load_that_fails_leaves_its_client_with_what_it_had(open_tab: Callable[[], Tab]) -> None:
    first, second = open_tab(), open_tab()
    fails = """([name, options]) =>
      load(name, options).then(() => 'loaded', ({code, message}) => `${code}: ${message}`)"""
    nowhere = {"model": "/models/nowhere.gguf"}
    first.make("a")
    first.load("a")
    before = first.text("a", CHATS[0])
    assert "is 'device' meant?" in first.page.evaluate(fails, ["a", {"devcie": "cpu"}])
    assert "shard.network" in first.page.evaluate(fails, ["a", nowhere])
    again = first.page.evaluate(
        "options => clients.a.chat.completions.create(options)",
        {"messages": CHATS[0]["messages"], "max_tokens": COUNT},
    )
    assert again["choices"][0]["message"]["content"] == before
    assert again["usage"]["cached_tokens"] > 0
    # Others find the engine by what is loaded there.
    second.make("b")
    second.load("b")
    second.until_engines(0)
    assert second.call("b", "status")["clients"] == 2
    slip = "clients.b.unload({modle: 'x'}).then(() => 'unloaded', ({code}) => code)"
    assert second.page.evaluate(slip) == "request.invalid"
    assert second.text("b", CHATS[0]) == before
    # Where others stay, a client goes to an engine of its own, and comes back.
    for tab, name in ((second, "b"), (first, "a")):
        assert "shard.network" in tab.page.evaluate(fails, [name, nowhere])
        assert tab.text(name, CHATS[0]) == before
        assert tab.call(name, "status")["clients"] == 2
    first.until_engines(1)
    second.until_engines(0)


# An engine that tells on a channel what it is asked; its loads end when it hears of it there.
TOLD = """
import { Hub } from "/worker/hub.mjs";
const channel = new BroadcastChannel("told");
const hub = new Hub(receive, (notice) => self.postMessage(notice));
self.onmessage = (event) => event.data.kind !== "share" && hub.obey(event);
function receive({ id, kind, model }) {
  const value = { key: model, model: {}, device: {} };
  const answer = () => hub.send({ id, kind: "result", value });
  channel.postMessage(`${kind} ${model}`);
  if (kind === "load") channel.addEventListener("message", answer, { once: true });
  else answer();
}
"""
# The page is frozen when a load is asked for, and once more when it has ended. What is stopped
# while the next engine loads the model: how each ends, and what that engine heard.
STOPPED = """async () => {
  const { Octavo } = await import("/client.mjs");
  const channel = new BroadcastChannel("told");
  const asked = [];
  let isOpen = true;
  channel.onmessage = ({ data }) => {
    asked.push(data);
    if (isOpen) channel.postMessage("go on");
  };
  const late = new Promise((resolve) => setTimeout(resolve, 5000, "never"));
  const ended = (work) => Promise.race([late, work.then(
    (answer) => answer.choices?.[0].finish_reason ?? answer, ({ code }) => code)]);
  const client = new Octavo({ share: "page", workerUrl: "/told.mjs" });
  const freeze = () => {
    for (const moment of ["freeze", "resume"]) document.dispatchEvent(new Event(moment));
  };
  await client.status();
  const first = ended(client.load({ model: "/a.json" }));
  freeze();
  if ((await first) === "never") throw new Error("The load waits for an engine that is gone.");
  isOpen = false;
  asked.length = 0;
  freeze();
  while (!asked.length) await new Promise((resolve) => setTimeout(resolve, 10));

  const abort = new AbortController();
  const messages = [{ role: "user", content: "Hi" }];
  const answer = ended(client.chat.completions.create({ messages }));
  const { signal } = abort;
  const vectors = ended(client.embeddings.create({ model: "/e.json", input: "a", signal }));
  abort.abort();
  const reset = ended(client.reset());
  const load = ended(client.load({ model: "/b.json" }));
  const stop = ended(client.stop());
  const outcomes = await Promise.all([answer, vectors, reset, load, stop]);
  isOpen = true;
  channel.postMessage("go on");
  await client.status();
  // What the engine heard comes by another way than its answer.
  for (let i = 0; i < 200 && !asked.at(-1).startsWith("status"); i++) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  client.close();
  channel.close();
  return [outcomes, asked];
}"""


def test_what_waits_for_another_engine_can_be_stopped(open_tab: Callable[[], Tab]) -> None:
    tab = open_tab()
    tab.page.route(
        "**/told.mjs", lambda route: route.fulfill(body=TOLD, content_type="text/javascript")
    )
    outcomes, asked = tab.page.evaluate(STOPPED)
    over = "request.cancelled"
    assert outcomes == ["cancelled", over, {}, over, {"stopped": True}]
    model = f"load {tab.page.url.removesuffix('models.json')}a.json"
    assert asked == [model, "status undefined"]
