"""Downloads over bad networks and from several tabs: right in the end, or a code, in bounded time;
fetched once, whoever dies on the way."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import answers
from tests.browser.conftest import cut
from tests.browser.origin import Origin
from tests.browser.sources import DATA, KEPT_HASH, Serve, load
from tests.conftest import StaticServer
from tests.tiny import TINY

pytestmark = pytest.mark.browser
SHARD = 10_000
RETRY = {"attempts": 5, "delay_ms": 20, "stall_ms": 60_000}
HASTY = {**RETRY, "stall_ms": 400}  # where it is stalls that are tried
BOUND_S = 15

# A store of its own in the page, without an engine: fetches all of a model.
FETCH = """async ([url, retry]) => {
  const {ShardStore} = await import(new URL('/worker/shards.mjs', location));
  window.store ??= new ShardStore(new URL('/models.json', location).href, retry);
  window.seen = [];
  try {
    const text = await store.open(url, (loaded, total) => window.seen.push([loaded, total]));
    const {shards} = JSON.parse(text);
    const parts = [];
    for (let i = 0; i < shards.length; i++) parts.push((await store.read(i)).slice());
    const bytes = await new Blob(parts).arrayBuffer();
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
  } catch (error) {
    return error.code ?? String(error);
  }
}"""
BEGIN = f"(args) => void (window.outcome = ({FETCH})(args))"
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tiny model at another site, whole and in many shards."""
    folder = tmp_path_factory.mktemp("cut") / "m"
    cut(TINY, folder, SHARD)
    return {"tiny.gguf": DATA} | {f"m/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def tabs(plain_chromium: Any, server: StaticServer) -> Iterator[Callable[[], Any]]:
    """Opens pages of one profile, with nothing in them."""
    context = plain_chromium.new_context()

    def tab() -> Any:
        page = context.new_page()
        page.goto(f"{server.url}/models.json")
        return page

    yield tab
    context.close()


@pytest.fixture(scope="module")
def one_tab(plain_chromium: Any, site: Path) -> Iterator[Any]:
    """A page for many tests, which leave something behind in it."""
    server = StaticServer(site)
    context = plain_chromium.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/models.json")
    yield page
    context.close()
    server.close()


def fetched(page: Any, url: str, retry: dict[str, int] = RETRY) -> Any:
    return page.evaluate(FETCH, [url, retry])


NETWORK: list[tuple[str, dict[str, Any], str, str]] = [
    # name, manners, outcome in shards with hashes, outcome by ranges of a file without any
    ("cut", {"cuts": [0, 5, 0, 4000]}, "right", "right"),
    ("cut for ever", {"cuts": [0] * 999}, "shard.network", "shard.network"),
    ("stalled", {"stalls": [0, 5, 9000]}, "right", "right"),
    ("stalled for ever", {"stalls": [0] * 99}, "shard.network", "shard.network"),
    ("reset", {"resets": [0, 5, 9000]}, "right", "right"),
    ("reset for ever", {"resets": [0] * 999}, "shard.network", "shard.network"),
    ("a wrong bit once", {"flips": 1}, "right", ""),
    ("a wrong bit always", {"flips": 999}, "shard.hash", ""),
    ("other ranges", {"shifts": 2, "cuts": [5, 7]}, "right", "right"),
    ("other ranges for ever", {"shifts": 999}, "right", "shard.network"),
    ("other ranges that lie", {"lies": 1, "cuts": [4000] * 2}, "right", ""),
    ("no HTTP", {"garbage": 2}, "right", "right"),
    ("no HTTP ever", {"garbage": 999}, "shard.network", "shard.network"),
    ("busy", {"statuses": [503, 500]}, "right", "right"),
    ("gone", {"statuses": [404] * 999}, "shard.network", "shard.network"),
    ("redirected nowhere", {"statuses": [302] * 999}, "shard.network", "shard.network"),
    ("slow to answer", {"delay_s": 0.1}, "right", "right"),
    ("2G", {"bytes_per_s": 60_000}, "right", "right"),
]
CASES = [
    pytest.param(dict(manners), path, outcome, id=f"{name}, {path.split('.')[-1]}")
    for name, manners, *outcomes in NETWORK
    for path, outcome in zip(("m/manifest.json", "tiny.gguf"), outcomes, strict=True)
    if outcome
]


@pytest.mark.parametrize(("manners", "path", "outcome"), CASES)
def test_a_bad_network(
    one_tab: Any,
    serve: Serve,
    files: dict[str, bytes],
    manners: dict[str, Any],
    path: str,
    outcome: str,
) -> None:
    origin = serve(files, **{k: list(v) if isinstance(v, list) else v for k, v in manners.items()})
    page = one_tab
    page.reload()
    page.evaluate("caches.delete('octavo-models')")
    start = time.monotonic()
    expected = SHA256 if outcome == "right" else outcome
    assert fetched(page, f"{origin.url}/{path}", HASTY) == expected
    assert time.monotonic() - start < BOUND_S
    if outcome == "right":
        assert page.evaluate(KEPT_HASH) == SHA256
        paths = list(origin.paths)
        assert fetched(page, f"{origin.url}/{path}") == SHA256
        assert origin.paths == paths, "what is kept needs no network"


def shard_requests(origin: Origin) -> list[str]:
    return sorted(path for path in origin.paths if path.endswith(".bin"))


def begun(origin: Origin, tabs: Callable[[], Any]) -> tuple[Origin, str, Any, Any]:
    """An address, a tab that has begun to fetch what is there, and one that has not."""
    url = f"{origin.url}/m/manifest.json"
    first, second = tabs(), tabs()
    first.evaluate(BEGIN, [url, RETRY])
    return origin, url, first, second


def test_two_tabs_fetch_a_model_once(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    origin, url, first, second = begun(serve(files, delay_s=0.15), tabs)
    second.evaluate(BEGIN, [url, RETRY])
    assert [tab.evaluate("window.outcome") for tab in (first, second)] == [SHA256] * 2
    assert len(shard_requests(origin)) == len(set(shard_requests(origin))) > 10
    for tab in (first, second):
        seen = [loaded for loaded, total in tab.evaluate("window.seen")]
        assert len(set(seen)) >= 3, "both show how it goes on"
        assert seen == sorted(seen)
        assert seen[-1] == len(DATA)


@pytest.mark.parametrize("how", ["closed", "stopped", "paused"])
def test_a_tab_that_waits_takes_over(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes], how: str
) -> None:
    origin, url, first, second = begun(serve(files, delay_s=0.1), tabs)
    while len(shard_requests(origin)) < 4:
        first.wait_for_timeout(20)
    second.evaluate(BEGIN, [url, RETRY])
    second.wait_for_timeout(100)
    if how == "closed":
        first.close()
    else:
        first.evaluate("store.cancel()" if how == "stopped" else "store.pause(true)")
    assert second.evaluate("window.outcome") == SHA256
    twice = len(shard_requests(origin)) - len(set(shard_requests(origin)))
    assert twice <= 4, "only what was on its way"
    if how == "stopped":
        assert first.evaluate("window.outcome") == "request.cancelled"
    if how == "paused":
        first.evaluate("store.pause(false)")
        assert first.evaluate("window.outcome") == SHA256
        assert second.evaluate(KEPT_HASH) == SHA256


def test_a_tab_that_waits_can_be_stopped(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    origin, url, first, second = begun(serve(files, delay_s=0.2), tabs)
    while not shard_requests(origin):
        first.wait_for_timeout(20)
    second.evaluate(BEGIN, [url, RETRY])
    second.wait_for_timeout(100)
    second.evaluate("store.cancel()")
    assert second.evaluate("window.outcome") == "request.cancelled"
    assert first.evaluate("window.outcome") == SHA256
    assert fetched(second, url) == SHA256, "and can begin again"


# Names of locks, held or waited for, that have to do with models.
LOCKS = """navigator.locks.query().then(({held, pending}) =>
  [held, pending].map((all) => all.filter(({name}) => name.startsWith('octavo-model:')).length))"""


def waiting(origin: Origin, url: str, first: Any, second: Any) -> None:
    """The second tab waits for the turn of the first, which has begun to fetch."""
    end = time.monotonic() + BOUND_S
    while not shard_requests(origin):
        assert time.monotonic() < end
        first.wait_for_timeout(20)
    second.evaluate(BEGIN, [url, RETRY])
    while second.evaluate(LOCKS) != [1, 1]:
        assert time.monotonic() < end
        second.wait_for_timeout(20)


def test_a_tab_that_waits_is_paused(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    """It fetches nothing until it is told to go on, and does not keep others waiting."""
    origin, url, first, second = begun(serve(files, delay_s=0.1), tabs)
    waiting(origin, url, first, second)
    for is_paused in (True, False, False, True):
        second.evaluate("(isPaused) => store.pause(isPaused)", is_paused)
        second.wait_for_timeout(50)
    first.close()
    second.wait_for_timeout(100)
    count = len(shard_requests(origin))
    second.wait_for_timeout(300)
    assert len(shard_requests(origin)) == count
    assert second.evaluate(LOCKS) == [0, 0]
    origin.manners.delay_s = 0
    second.evaluate("store.pause(false)")
    assert second.evaluate("window.outcome") == SHA256
    assert second.evaluate(LOCKS) == [0, 0]


def test_a_tab_that_waits_fails(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    """What cannot read the cache does not keep others waiting either."""
    origin, url, first, second = begun(serve(files, delay_s=0.2), tabs)
    waiting(origin, url, first, second)
    second.evaluate("void (Cache.prototype.match = () => Promise.reject(new Error('broken')))")
    assert "broken" in second.evaluate("window.outcome")
    assert second.evaluate(LOCKS) == [1, 0]
    first.evaluate("store.cancel()")
    assert second.evaluate(LOCKS) == [0, 0]


def test_a_model_is_deleted_while_another_tab_fetches_it(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    """It loads, and nothing is left of it that no list would show."""
    origin, url, first, second = begun(serve(files, first=13), tabs)
    while len(shard_requests(origin)) < 12:
        first.wait_for_timeout(20)
    second.evaluate(
        """async (url) => {
          const {removeModel} = await import('/worker/library.mjs');
          await removeModel(url);
        }""",
        url,
    )
    origin.let_go()
    assert first.evaluate("window.outcome") == SHA256
    left = "caches.open('octavo-models').then((cache) => cache.keys()).then((all) => all.length)"
    assert first.evaluate(left) <= 4, "only what was on its way"
    assert first.evaluate("(url) => store.kept(url)", url) == {"kept": False}


def with_all_kept(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> tuple[Origin, str, Any]:
    """A server, the address of its model, and a page on a later visit, the model being kept."""
    origin = serve(files)
    url = f"{origin.url}/m/manifest.json"
    page = tabs()
    assert fetched(page, url) == SHA256
    page.reload()
    return origin, url, page


def test_a_manifest_that_was_damaged_is_fetched_anew(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    origin, url, page = with_all_kept(tabs, serve, files)
    page.evaluate(
        """async (url) => {
          const cache = await caches.open('octavo-models');
          await cache.put(url, new Response('{'));
        }""",
        url,
    )
    origin.paths.clear()
    assert fetched(page, url) == SHA256
    assert origin.paths == ["/m/manifest.json"]


def test_a_tab_that_dies_twenty_times(
    open_chat: Any, plain_chromium: Any, server: StaticServer, serve: Serve, files: dict[str, bytes]
) -> None:
    """At random moments, closed or crashed: in the end there is one good copy, and it loads."""
    dice = random.Random(1)
    origin = serve(files, delay_s=0.03)
    url = f"{origin.url}/m/manifest.json"
    context = plain_chromium.new_context()
    for i in range(20):
        page = context.new_page()
        page.goto(f"{server.url}/models.json")
        page.evaluate(BEGIN, [url, RETRY])
        page.wait_for_timeout(dice.uniform(0, 60))
        if i % 4 == 0:
            with suppress(Exception):
                page.goto("chrome://crash", timeout=2000)
        page.close()
    page = context.new_page()
    page.goto(f"{server.url}/models.json")
    assert fetched(page, url) == SHA256
    assert page.evaluate(KEPT_HASH) == SHA256
    kept = page.evaluate("caches.open('octavo-models').then((c) => c.keys()).then((k) => k.length)")
    assert kept == len(json.loads(files["m/manifest.json"])["shards"]) + 1
    chat = open_chat("model=none/manifest.json&device=cpu&context=512", context=context)
    chat.error_code()
    origin.paths.clear()
    assert load(chat, url) == "loaded"
    answers(chat)
    assert origin.paths == []
    context.close()


@pytest.mark.parametrize("how", ["all", "one", "truncated", "another's"])
def test_the_cache_is_changed_under_a_download(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes], how: str
) -> None:
    """What is gone or wrong when it is read comes from the network again."""
    origin, url, page = with_all_kept(tabs, serve, files)
    page.evaluate(
        """async (how) => {
          const {ShardStore} = await import(new URL('/worker/shards.mjs', location));
          const read = ShardStore.prototype.read;
          ShardStore.prototype.read = async function (i) {
            if (i === 2) {
              const cache = await caches.open('octavo-models');
              const bins = (await cache.keys()).filter(({url}) => url.endsWith('.bin')).slice(4);
              if (how === 'all') await caches.delete('octavo-models');
              if (how === 'one') await cache.delete(bins[3]);
              if (how === 'truncated') {
                const {headers} = await cache.match(bins[3]);
                await cache.put(bins[3], new Response(new Uint8Array(77), {headers}));
              }
              if (how === "another's") await cache.put(bins[3], await cache.match(bins[4]));
            }
            return read.call(this, i);
          };
        }""",
        how,
    )
    origin.paths.clear()
    assert fetched(page, url) == SHA256
    count = len(shard_requests(origin))
    assert count >= 8 if how == "all" else count == 1


def test_the_cache_fills_up_in_the_middle(
    tabs: Callable[[], Any], serve: Serve, files: dict[str, bytes]
) -> None:
    """What fits stays and the model loads; what could be freed is said."""
    origin = serve(files)
    page = tabs()
    assert fetched(page, f"{origin.url}/tiny.gguf") == SHA256
    page.reload()
    page.evaluate(
        """() => {
          const put = Cache.prototype.put;
          let count = 0;
          Cache.prototype.put = function (...args) {
            if (++count > 6) throw new DOMException('full', 'QuotaExceededError');
            return put.apply(this, args);
          };
        }"""
    )
    assert fetched(page, f"{origin.url}/m/manifest.json") == SHA256
    cut = f"{origin.url}/m/manifest.json"
    kept = page.evaluate("(model) => store.kept(model)", cut)
    assert kept["kept"] is False
    assert "Only 1 MB of the model's 1 MB" in kept["not_kept"]
    assert kept["not_kept"].endswith(": tiny (1 MB)."), "which could be deleted"
    page.reload()
    origin.paths.clear()
    assert fetched(page, f"{origin.url}/m/manifest.json") == SHA256
    assert len(shard_requests(origin)) == len(json.loads(files["m/manifest.json"])["shards"]) - 5
    page.evaluate("(model) => store.open(model)", f"{origin.url}/tiny.gguf")
    assert page.evaluate("(model) => store.kept(model)", cut) == {"kept": True}
    assert page.evaluate("store.kept('another')") == {"kept": False}
