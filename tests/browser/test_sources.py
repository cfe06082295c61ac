"""Models from addresses and files: by ranges or in order, from servers with bad manners, whole or
split; what is kept of them, paused, resumed and removed."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import answers
from tests.browser.chat import Chat, Open
from tests.browser.conftest import link_site
from tests.browser.origin import Origin
from tests.browser.sources import DATA, KEPT_HASH, NONE, Serve, load
from tests.conftest import BROWSER_FLAGS, ROOT, StaticServer
from tests.splitting import split
from tests.tiny import SHIP, TINY

pytestmark = pytest.mark.browser
SHARD = 16 << 20
# Three shards; what follows a file's tensors is nobody's.
LARGE = DATA + random.Random(0).randbytes(2 * SHARD)
IDS = SHIP["ids"][:9]
FILES = {"large.gguf": LARGE, "tiny.gguf": DATA}


@pytest.fixture
def chat(open_chat: Open) -> Chat:
    chat = open_chat(NONE)
    chat.error_code()
    return chat


def listed(chat: Chat) -> list[dict[str, Any]]:
    """What is kept beside the catalogue."""
    models: list[dict[str, Any]] = chat.page.evaluate("octavo.models()")["models"]
    return [model for model in models if not model["catalogued"]]


def data_requests(origin: Origin) -> list[str]:
    return [range for method, range in origin.requests if method == "GET" and range != "bytes=0-3"]


BY_HAND = pytest.mark.by_hand


@pytest.mark.parametrize(
    "manners",
    [
        pytest.param({}, id="ranges"),
        pytest.param({"exposes": False}, id="ranges that pages cannot read"),
        pytest.param({"ranges": False}, id="no ranges"),
        pytest.param(
            {"ranges": False, "exposes": False, "etag": ""},
            id="no ranges, no version",
            marks=BY_HAND,
        ),
        pytest.param({"cuts": [1 << 20, 0, 5, SHARD - 1]}, id="cut", marks=BY_HAND),
        pytest.param({"ranges": False, "cuts": [1 << 20, 20 << 20]}, id="cut without ranges"),
        pytest.param({"statuses": [503, 429]}, id="busy"),
        pytest.param({"ranges": False, "statuses": [429]}, id="busy no ranges", marks=BY_HAND),
    ],
)
def test_a_gguf_at_an_address(chat: Chat, serve: Serve, manners: dict[str, Any]) -> None:
    origin = serve(FILES, **manners)
    url = f"{origin.url}/large.gguf?download=true"
    assert load(chat, url) == "loaded", chat.page.evaluate("window.why")
    answers(chat)
    if not manners:
        assert sorted(data_requests(origin)) == sorted(
            f"bytes={start}-{min(start + SHARD, len(LARGE)) - 1}"
            for start in range(0, len(LARGE), SHARD)
        )
    if manners == {"ranges": False}:
        assert data_requests(origin) == [""], "the whole file once"
    [kept] = listed(chat)
    assert kept == {
        "id": url,
        "name": "large",
        "size": len(LARGE),
        "kept_bytes": len(LARGE),
        "catalogued": False,
    }
    assert chat.page.evaluate(KEPT_HASH) == hashlib.sha256(LARGE).hexdigest()
    origin.requests.clear()
    chat.page.reload()
    chat.error_code()
    assert load(chat, url) == "loaded"
    answers(chat)
    assert origin.requests == [], "what is kept needs no network"
    removed = chat.page.evaluate("(url) => octavo.remove(url)", url)
    assert removed == {"bytes": len(LARGE)}
    assert listed(chat) == []
    assert chat.page.evaluate("async () => (await caches.open('octavo-models')).keys()") == []


@pytest.mark.parametrize(
    ("manners", "path", "code", "said"),
    [
        ({"page": True}, "large.gguf", "gguf.invalid", "web page"),
        ({}, "none.gguf", "shard.network", "404"),
        ({"length": False, "ranges": False}, "large.gguf", "shard.network", "how large"),
        ({"length": False, "exposes": False}, "large.gguf", "shard.network", "how large"),
        ({"ranges": False, "lie": 1 << 20}, "tiny.gguf", "shard.network", "could not be"),
        ({"lie": 1 << 20}, "tiny.gguf", "shard.network", "ended after"),
        ({"ranges": False, "lie": -50_000}, "tiny.gguf", "gguf.truncated", "ends"),
        ({"more": True}, "large.gguf", "shard.hash", "does not match"),
        ({"statuses": [503] * 99}, "tiny.gguf", "shard.network", "503"),
        ({"statuses": [429] * 99}, "tiny.gguf", "shard.network", "too many requests"),
    ],
    ids=[
        "a page",
        "missing",
        "no length",
        "no length to be read",
        "too long",
        "too long by ranges",
        "too short",
        "more than asked for",
        "unavailable",
        "too many requests",
    ],
)
def test_a_server_that_will_not_do(
    chat: Chat, serve: Serve, manners: dict[str, Any], path: str, code: str, said: str
) -> None:
    chat.page.evaluate("octavo.unload()")
    assert load(chat, f"{serve(FILES, **manners).url}/{path}") == code
    assert said in chat.page.evaluate("window.why")
    outcome = load(chat, "models/tiny/manifest.json")
    assert outcome == "loaded", chat.page.evaluate("window.why")
    answers(chat)


def test_a_connection_that_breaks_again_and_again_but_brings_something(
    chat: Chat, serve: Serve
) -> None:
    origin = serve(FILES, cuts=[20_000] * 6)  # more often than attempts without progress
    assert load(chat, f"{origin.url}/tiny.gguf") == "loaded", chat.page.evaluate("window.why")
    assert len(data_requests(origin)) == 7
    answers(chat)


def test_no_server_at_all(chat: Chat, serve: Serve) -> None:
    origin = serve(FILES)
    origin.close()
    assert load(chat, f"{origin.url}/tiny.gguf") == "shard.network"
    assert "CORS" in chat.page.evaluate("window.why")


def test_a_download_goes_on_at_the_missing_shard_after_the_tab_was_closed(
    open_chat: Open, plain_chromium: Any, serve: Serve
) -> None:
    origin = serve(FILES, bytes_per_s=2e6)
    url = f"{origin.url}/large.gguf"
    context = plain_chromium.new_context()
    chat = open_chat(NONE, context=context)
    chat.error_code()
    chat.page.evaluate("(url) => void octavo.load({model: url}).catch(() => {})", url)
    last = len(LARGE) - 2 * SHARD  # bytes of the last shard, which comes soon
    is_kept = f"models.some(({{kept_bytes}}) => kept_bytes === {last})"
    chat.until(f"octavo.models().then(({{models}}) => {is_kept})")
    chat.page.close(run_before_unload=False)
    origin.requests.clear()
    origin.manners.bytes_per_s = 0
    chat = open_chat(NONE, context=context)
    chat.error_code()
    assert load(chat, url) == "loaded"
    answers(chat)
    starts = sorted(int(wanted[6:].split("-")[0]) for wanted in data_requests(origin))
    assert starts == [0, SHARD], "the last shard, which is short, had come"
    context.close()


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_another_version_on_the_server_begins_anew(chat: Chat, serve: Serve, ranges: bool) -> None:
    """Old and new parts never mix, although both have the same size."""
    other = (ROOT / "tests/golden/tiny_untied.gguf").read_bytes()
    origin = serve({"m.gguf": other + bytes(len(LARGE) - len(other))}, ranges=ranges)
    origin.manners.cuts = [SHARD // 2] * 2
    url = f"{origin.url}/m.gguf"
    assert load(chat, url) == "loaded"
    cleared = """async () => {
      const cache = await caches.open('octavo-models');
      for (const request of await cache.keys()) {
        if (request.url.endsWith('001.bin')) await cache.delete(request);
      }
    }"""
    chat.page.evaluate(cleared)
    origin.files["m.gguf"] = LARGE
    origin.manners.etag = '"two"'
    assert load(chat, url) == "loaded"
    answers(chat)


@pytest.mark.parametrize("right", [True, False])
def test_the_hash_of_a_whole_file(
    serve: Serve, tmp_path: Path, plain_chromium: Any, right: bool
) -> None:
    origin = serve(FILES)
    site = link_site(tmp_path / "root")
    sha256 = hashlib.sha256(LARGE if right else DATA).hexdigest()
    entry = {"id": "large", "name": "L", "address": f"{origin.url}/large.gguf", "sha256": sha256}
    (site / "models.json").unlink()
    (site / "models.json").write_text(json.dumps({"default": "large", "models": [entry]}))
    server = StaticServer(site)
    context = plain_chromium.new_context()
    try:
        chat = Chat(context.new_page(), server, f"{server.url}/?{NONE}").open()
        chat.error_code()
        assert load(chat, "large") == ("loaded" if right else "shard.hash")
        [model] = chat.page.evaluate("octavo.models()")["models"]
        assert model["kept_bytes"] == (len(LARGE) if right else 0)
        if right:
            answers(chat)
            chat.page.reload()
            chat.error_code()
            assert load(chat, "large") == "loaded"
    finally:
        context.close()
        server.close()


def test_a_split_model_at_addresses(chat: Chat, serve: Serve, tmp_path: Path) -> None:
    parts = split(TINY, tmp_path)
    files = {part.name: part.read_bytes() for part in parts}
    origin = serve(files)
    assert load(chat, f"{origin.url}/{parts[2].name}") == "loaded"
    answers(chat)
    [kept] = listed(chat)
    assert (kept["name"], kept["kept_bytes"]) == ("tiny", sum(map(len, files.values())))
    del origin.files[parts[1].name]
    chat.page.evaluate("(id) => octavo.remove(id)", kept["id"])
    assert load(chat, f"{origin.url}/{parts[0].name}") == "shard.network"
    assert parts[1].name in chat.page.evaluate("window.why")


def pick(chat: Chat, paths: list[Path]) -> None:
    """The files as the page gets them from the person, in ``window.files``."""
    chat.page.evaluate(
        """() => {
          document.getElementById('picker')?.remove();
          const input = Object.assign(document.createElement('input'), {
            type: 'file', multiple: true, id: 'picker'});
          input.onchange = () => (window.files = [...input.files]);
          document.body.append(input);
        }"""
    )
    chat.page.set_input_files("#picker", paths)


def load_picked(chat: Chat, options: str = "{}") -> str:
    code: str = chat.page.evaluate(
        f"""() => octavo.load({{model: window.files, ...{options}}})
          .then(() => 'loaded', (error) => {{ window.why = error.message; return error.code; }})"""
    )
    return code


@pytest.mark.parametrize("keep", [False, True])
def test_a_file_from_disk(chat: Chat, tmp_path: Path, keep: bool) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(LARGE)
    pick(chat, [path])
    assert load_picked(chat, f"{{keep: {str(keep).lower()}}}") == "loaded"
    answers(chat)
    kept = listed(chat)
    assert [model["kept_bytes"] for model in kept] == [len(LARGE)] * keep
    if keep:
        path.unlink()
        chat.page.reload()
        chat.error_code()
        assert load(chat, kept[0]["id"]) == "loaded"
        answers(chat)


def test_a_split_model_from_disk(chat: Chat, tmp_path: Path) -> None:
    parts = split(TINY, tmp_path)
    pick(chat, parts[::-1])
    assert load_picked(chat) == "loaded"
    answers(chat)
    chat.page.evaluate("window.files.pop()")
    assert load_picked(chat) == "request.invalid"
    assert parts[0].name in chat.page.evaluate("window.why")
    pick(chat, [TINY, TINY.with_name("tiny_untied.gguf")])
    assert load_picked(chat) == "request.invalid"
    assert "not of one model" in chat.page.evaluate("window.why")
    answers(chat)


def test_a_file_that_was_changed_after_it_was_picked(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(LARGE)
    pick(chat, [path])
    path.write_bytes(LARGE[:-1])
    os.utime(path, (0, 0))  # for the browser looks at the time alone, and not too closely
    assert load_picked(chat) == "shard.file"


def test_a_download_is_paused_and_goes_on(chat: Chat, serve: Serve) -> None:
    origin = serve(FILES, bytes_per_s=20e6)
    chat.page.evaluate(
        """(url) => {
          window.seen = [];
          const note = ({stage, loaded}) => stage === 'download' && window.seen.push(loaded);
          window.outcome = octavo.load({model: url}, note).then(() => 'loaded', (e) => e.code);
        }""",
        f"{origin.url}/large.gguf",
    )
    chat.until("window.seen.at(-1) > 4e6")
    assert chat.page.evaluate("octavo.pause()") is True
    origin.manners.bytes_per_s = 0
    chat.page.wait_for_timeout(300)
    before, requests = chat.page.evaluate("window.seen.at(-1)"), len(origin.requests)
    chat.page.wait_for_timeout(700)
    assert chat.page.evaluate("window.seen.at(-1)") == before < len(LARGE)
    assert len(origin.requests) == requests
    assert chat.page.evaluate("octavo.resume()") is True
    assert chat.page.evaluate("window.outcome") == "loaded"
    starts = [int(wanted[6:].split("-")[0]) for wanted in data_requests(origin)]
    assert any(start % SHARD for start in starts), "in the middle of a shard, not at its beginning"
    answers(chat)
    assert chat.page.evaluate("octavo.pause()") is False, "nothing to pause any longer"


def test_a_paused_download_is_stopped(chat: Chat, serve: Serve) -> None:
    origin = serve(FILES, bytes_per_s=20e6)
    outcome = chat.page.evaluate(
        """async (url) => {
          let wake;
          const begun = new Promise((resolve) => (wake = resolve));
          const note = ({stage, loaded}) => stage === 'download' && loaded > 1e6 && wake();
          const outcome = octavo.load({model: url}, note).then(() => 'loaded', (e) => e.code);
          await begun;
          await octavo.pause();
          await octavo.stop();
          return outcome;
        }""",
        f"{origin.url}/large.gguf",
    )
    assert outcome == "request.cancelled"
    assert load(chat, "models/tiny/manifest.json") == "loaded"
    answers(chat)


@pytest.fixture
def frank_chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """Chromium that tells pages its real quota, which it otherwise keeps for itself."""
    flags = [*BROWSER_FLAGS, "--disable-features=StaticStorageQuota"]
    browser = playwright.chromium.launch(executable_path=chromium_path, args=flags)
    yield browser
    browser.close()


def test_there_is_no_room(open_chat: Open, frank_chromium: Any, serve: Serve) -> None:
    """Said with the numbers before anything comes; without keeping it, the model loads."""
    chat = open_chat(NONE, browser=frank_chromium)
    chat.error_code()
    chat.page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    origin = serve(FILES)
    session = chat.page.context.new_cdp_session(chat.page)
    used = chat.page.evaluate("navigator.storage.estimate().then(({usage}) => usage)")
    session.send(
        "Storage.overrideQuotaForOrigin",
        {"origin": chat.server.url, "quotaSize": used + 20_000_000},
    )
    url = f"{origin.url}/large.gguf"
    assert load(chat, url) == "shard.quota"
    why = chat.page.evaluate("window.why")
    assert "34 MB more" in why
    assert "20 MB" in why
    assert data_requests(origin) == []
    assert load(chat, url, keep=False) == "loaded"
    answers(chat)
    assert [model["kept_bytes"] for model in listed(chat)] in ([], [0])


def test_the_catalogue_is_listed_with_what_is_kept(chat: Chat) -> None:
    listing = chat.page.evaluate("octavo.models()")
    [model] = [m for m in listing["models"] if m["id"] == listing["default"]]
    assert model["catalogued"]
    assert {"name", "size", "context", "license", "memory"} <= model.keys()
    assert listing["storage"]["quota"] > 0
    assert load(chat, "models/tiny/manifest.json") == "loaded"
    [tiny] = listed(chat)
    assert tiny["kept_bytes"] == len(DATA)
    assert chat.page.evaluate("(id) => octavo.remove(id)", tiny["id"]) == {"bytes": len(DATA)}
    assert listed(chat) == []
    answers(chat)
