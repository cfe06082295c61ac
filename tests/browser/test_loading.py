"""First load, cached load, offline, and what can go wrong on the way."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import Chat, Open
from tests.browser.conftest import cut, link_site
from tests.conftest import ROOT, StaticServer

pytestmark = pytest.mark.browser
TINY = "model=models/tiny/manifest.json&context=512&max_tokens=20"
TINY_FILE = ROOT / "tests/golden/tiny.gguf"
Tamper = Callable[[Path], None]


def model_requests(server: StaticServer) -> list[str]:
    return [path for path in server.requests if "/models/" in path]


def test_second_load_asks_the_network_for_no_model_byte(
    open_chat: Open, server: StaticServer
) -> None:
    chat = open_chat(f"{TINY}&device=cpu").wait_for("ready")
    assert len(model_requests(server)) > 3
    first = chat.ask("Where is the sea?")
    server.requests.clear()
    chat.page.reload()
    assert chat.wait_for("ready").anew().ask("Where is the sea?") == first
    assert model_requests(server) == []


def test_progress_counts_bytes(open_chat: Open) -> None:
    chat = open_chat(f"{TINY}&device=cpu").wait_for("ready")
    seen = chat.page.evaluate(
        """async () => {
          const seen = [];
          const options = {model: 'models/tiny/manifest.json', device: 'cpu'};
          await octavo.load(options, (progress) => seen.push(progress));
          return seen;
        }"""
    )
    size = TINY_FILE.stat().st_size
    for stage in ("download", "weights"):
        counts = [p["loaded"] for p in seen if p["stage"] == stage]
        assert counts == sorted(counts)
        assert counts[-1] == size
        assert {p["total"] for p in seen if p["stage"] == stage} == {size}


def test_offline(site: Path, plain_chromium: Any) -> None:
    server = StaticServer(site)
    context = plain_chromium.new_context()
    url = f"{server.url}/?{TINY}&device=cpu"
    chat = Chat(context.new_page(), server, url).open().wait_for("ready")
    first = chat.ask("Where is the sea?")
    chat.page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    server.close()
    chat.page.reload()
    assert chat.wait_for("ready").anew().ask("Where is the sea?") == first
    chat.hook("performance").click()
    chat.page.wait_for_selector("[data-testid=figure-speed] canvas")
    context.close()


def test_device_gpu_without_an_adapter(open_chat: Open, plain_chromium: Any) -> None:
    chat = open_chat(f"{TINY}&device=gpu", browser=plain_chromium)
    assert chat.error_code() == "gpu.unavailable"


def test_auto_takes_the_cpu_over_a_software_adapter_and_says_so(
    open_chat: Open, gpu_chromium: Any
) -> None:
    chat = open_chat(f"{TINY}&device=auto", browser=gpu_chromium).wait_for("ready")
    device = chat.status()["device"]
    assert device["kind"] == "cpu"
    assert "software" in device["reason"]
    assert "CPU" in chat.page.locator("body").inner_text()


def test_the_cpu_has_kernels_and_without_rounding_computes_by_numpy(open_chat: Open) -> None:
    ids, memory = [], []
    for activations, name in (("auto", "CPU (WebAssembly)"), ("f32", "CPU (NumPy)")):
        chat = open_chat(f"{TINY}&device=cpu&activations={activations}").wait_for("ready")
        assert chat.status()["device"]["name"] == name
        memory.append(chat.status()["memory"]["weights"])
        messages = [{"role": "user", "content": "Where is the rain in the sea?"}]
        ids.append(chat.complete(messages)["octavo"]["ids"])
    assert ids[0] == ids[1]
    assert memory[0] < memory[1] / 3, "the file's blocks, and f32"


@pytest.fixture
def broken(
    tmp_path: Path, plain_chromium: Any
) -> Iterator[Callable[[Callable[[Path], None]], Chat]]:
    """A site whose tiny model was tampered with, and a page that loads it."""
    server = StaticServer(link_site(tmp_path / "root"))
    context = plain_chromium.new_context()

    def open_page(tamper: Tamper) -> Chat:
        tamper(tmp_path / "root/models/tiny")
        return Chat(context.new_page(), server, f"{server.url}/?{TINY}&device=cpu").open()

    yield open_page
    context.close()
    server.close()


def replaced(edit: Callable[[bytes], bytes]) -> Tamper:
    """The tiny model cut anew from an edited file, hashes and all."""

    def tamper(folder: Path) -> None:
        shutil.rmtree(folder)
        source = folder.parent / "edited.gguf"
        source.write_bytes(edit(TINY_FILE.read_bytes()))
        cut(source, folder)

    return tamper


def wrong_shard(folder: Path) -> None:
    data = bytearray((folder / "001.bin").read_bytes())
    data[100] ^= 1
    (folder / "001.bin").write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("tamper", "code"),
    [
        (wrong_shard, "shard.hash"),
        (lambda folder: (folder / "002.bin").unlink(), "shard.network"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.invalid"),
        (replaced(lambda d: b"not a model at all, but long enough" * 99), "gguf.invalid"),
        (replaced(lambda d: d[:4] + struct.pack("<I", 1) + d[8:]), "gguf.version"),
        (replaced(lambda d: d[:400]), "gguf.truncated"),
        (replaced(lambda d: d[:-5000]), "gguf.truncated"),
    ],
    ids=["hash", "missing", "manifest", "not gguf", "version 1", "header", "data"],
)
def test_a_broken_model_gets_its_error(
    broken: Callable[[Tamper], Chat], tamper: Tamper, code: str
) -> None:
    chat = broken(tamper)
    assert chat.error_code() == code
    assert len(chat.hook("error").inner_text()) > 20


def test_a_corrupt_cached_shard_is_fetched_again(open_chat: Open, server: StaticServer) -> None:
    chat = open_chat(f"{TINY}&device=cpu").wait_for("ready")
    first = chat.ask("Where is the sea?")
    corrupted = chat.page.evaluate(
        """async () => {
          let count = 0;
          for (const name of await caches.keys()) {
            const cache = await caches.open(name);
            for (const request of await cache.keys()) {
              if (!/00[12]\\.bin/.test(request.url)) continue;
              const response = await cache.match(request);
              const bytes = new Uint8Array(await response.arrayBuffer());
              bytes[5] ^= 255;
              // one with the checksum that it was kept with, one without any: then SHA-256 tells
              const {headers} = request.url.includes('001') ? response : new Response();
              await cache.put(request, new Response(bytes, {headers}));
              count++;
            }
          }
          return count;
        }"""
    )
    assert corrupted == 2
    server.requests.clear()
    chat.page.reload()
    assert chat.wait_for("ready").anew().ask("Where is the sea?") == first
    assert sorted(Path(p.split("?")[0]).name for p in model_requests(server)) == [
        "001.bin",
        "002.bin",
    ]


def test_a_load_ends_at_once_however_busy_the_worker_is(open_chat: Open) -> None:
    """This worker never answers."""
    page = open_chat("model=models/none.json&device=cpu").page
    ended = page.evaluate(
        """async () => {
          const {Octavo} = await import('./client.mjs');
          const client = new Octavo({workerUrl: new URL('worker/protocol.mjs', location)});
          const load = client.load({}).catch((error) => error.code);
          client.stop().catch(() => {});
          const late = new Promise((resolve) => setTimeout(() => resolve('late'), 5000));
          const ended = await Promise.race([load, late]);
          client.close();
          return ended;
        }"""
    )
    assert ended == "request.cancelled"


def test_a_worker_that_cannot_be_started_is_an_error(open_chat: Open) -> None:
    found = open_chat("model=models/none.json&device=cpu").page.evaluate(
        """async () => {
          const {Octavo} = await import('./client.mjs');
          const found = [];
          for (const workerUrl of ['https://example.com/worker.mjs', 'http://[', 'none.mjs']) {
            for (const share of [false, 'page']) {
              const client = new Octavo({workerUrl, share});
              const load = client.load().catch(({code, message}) => [code, message]);
              const late = new Promise((resolve) => setTimeout(() => resolve(['late', '']), 60000));
              found.push([workerUrl, ...await Promise.race([load, late])]);
              client.close();
            }
          }
          return found;
        }"""
    )
    for address, code, message in found:
        assert code == "internal" and address in message and not message.endswith("..")


def test_a_model_that_came_when_its_load_was_stopped_already_is_not_kept(open_chat: Open) -> None:
    """The page is busy until the load has ended, and stops it before it hears of that."""
    page = open_chat("model=models/none.json&device=cpu").page
    outcome, state = page.evaluate(
        """async () => {
          const {Octavo} = await import('./client.mjs');
          const client = new Octavo();
          const stopLate = ({stage, loaded, total}) => {
            if (stage !== 'warmup' || loaded < total) return;
            for (const start = performance.now(); performance.now() < start + 1500;);
            client.stop();
          };
          const {shards} = await (await fetch('models/tiny/manifest.json')).json();
          const parts = shards.map(async ({name}) => (await fetch(`models/tiny/${name}`)).blob());
          const model = new File(await Promise.all(parts), 'tiny.gguf'); // it has no address
          const load = client.load({model, device: 'cpu'}, stopLate);
          const outcome = await load.then(() => 'loaded', (error) => error.code);
          let state;
          for (let i = 0; i < 50 && state !== 'empty'; i++) {
            ({state} = await client.status());
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
          client.close();
          return [outcome, state];
        }"""
    )
    assert (outcome, state) == ("request.cancelled", "empty")


def test_cancelling_a_load_and_loading_again(open_chat: Open) -> None:
    chat = open_chat(f"{TINY}&device=cpu").wait_for("ready")
    outcome = chat.page.evaluate(
        """async () => {
          const load = octavo.load({model: 'models/tiny/manifest.json', device: 'cpu'});
          const failed = load.then(() => 'loaded', (error) => error.code);
          await octavo.stop();
          return failed;
        }"""
    )
    assert outcome == "request.cancelled"
    chat.page.evaluate("octavo.load({model: 'models/tiny/manifest.json', device: 'cpu'})")
    assert chat.status()["state"] == "ready"


def test_manifest_lists_what_the_site_has(site: Path) -> None:
    manifest = json.loads((site / "models/tiny/manifest.json").read_text(encoding="utf-8"))
    assert len(manifest["shards"]) == 4


def test_a_page_and_a_worker_of_two_versions_part(open_chat: Open) -> None:
    page = open_chat("model=models/none.json&device=cpu").page
    outcomes = page.evaluate(
        """async () => {
          const {Octavo} = await import('./client.mjs');
          const {VERSION} = await import('./worker/version.mjs');
          const outcome = async (version) => {
            const workerUrl = new URL(`worker/worker.mjs?version=${version}`, location);
            const client = new Octavo({workerUrl, device: 'cpu'});
            const load = client.load({model: 'models/tiny/manifest.json'});
            const code = await load.then(() => 'loaded', (error) => error.code);
            client.close();
            return code;
          };
          return [VERSION.length, await outcome('another'), await outcome(VERSION)];
        }"""
    )
    assert outcomes == [16, "site.changed", "loaded"]


def test_what_never_comes_ends_with_a_code(open_chat: Open) -> None:
    page = open_chat("model=models/none.json&device=cpu").page
    outcomes = page.evaluate(
        """async () => {
          const {within} = await import('./worker/waits.mjs');
          const never = new Promise(() => {});
          const code = (error) => `${error.code}: ${error.message}`;
          return [
            await within(0.05, never, 'Nothing').catch(code),
            await within(0.05, never, 'The GPU', 'gpu.stalled').catch(code),
            await within(5, Promise.resolve(7), 'Seven'),
            await within(5, Promise.reject(new Error('why')), 'Seven').catch(code),
          ];
        }"""
    )
    assert outcomes == [
        "engine.stalled: Nothing: nothing came of it within 0.05 s.",
        "gpu.stalled: The GPU: nothing came of it within 0.05 s.",
        7,
        "undefined: why",
    ]
