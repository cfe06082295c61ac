"""The service worker with two versions of the site: a page and what it loads are of one version,
whatever is opened, reloaded, interrupted and killed."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><title>{v}</title><script type="module" src="app.mjs"></script>"""
APP = """import {{installOffline}} from './offline.mjs';
import {{part}} from './part.mjs';
const ask = async (path) => (await (await fetch(path)).text()).trim();
window.update = installOffline;
// All that a page loads, at once and much later: its parts, a worker, and a worker's worker.
window.versions = async () => {{
  const worker = new Worker('worker.mjs', {{type: 'module'}});
  const answer = new Promise((resolve, reject) => {{
    worker.onmessage = ({{data}}) => resolve(data);
    worker.onerror = reject;
    setTimeout(reject, 3000, new Error('nothing came of the workers'));
  }});
  answer.catch(() => {{}});
  const {{late}} = await import('./late.mjs');
  return [document.title, '{v}', part, late, await ask('data.txt'), ...await answer];
}};
"""
WORKER = """import {{part}} from './part.mjs';
const nested = new Worker('nested.mjs', {{type: 'module'}});
nested.onmessage = ({{data}}) => postMessage(['{v}', part, data]);
"""
BIG = "data.txt"


def site(version: str) -> dict[str, bytes]:
    """A small site with the real service worker and the real page's side of it."""
    files = {
        "index.html": PAGE.format(v=version),
        "app.mjs": APP.format(v=version),
        "part.mjs": f"export const part = '{version}';",
        "late.mjs": f"export const late = '{version}';",
        "worker.mjs": WORKER.format(v=version),
        "nested.mjs": f"postMessage('{version}');",
        "models.json": "{}",
        BIG: version + " " * 200_000,
        "sw.js": (ROOT / "web/sw.js").read_text(encoding="utf-8"),
        "offline.mjs": (ROOT / "web/offline.mjs").read_text(encoding="utf-8"),
    }
    return {name: text.encode() for name, text in files.items()}


class Deployed:
    """A site whose version changes, also in the middle of things."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.delay_s = 0.0
        self.on_request: Callable[[str], None] = lambda path: None
        self.requests: list[str] = []
        deployed = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                path = self.path.split("?")[0].lstrip("/")
                deployed.requests.append(path)
                deployed.on_request(path)
                deployed.closing.wait(deployed.delay_s)
                data = deployed.files.get(path or "index.html")
                self.send_response(404 if data is None else 200)
                kinds = {"html": "text/html", "json": "application/json", "txt": "text/plain"}
                kind = kinds.get((path or "index.html").split(".")[-1], "text/javascript")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(data or b"")

        self.closing = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def deploy(self, version: str) -> None:
        from engine.host import assemble

        files = site(version)
        self.files = {**files, "precache.json": assemble.precache(files)}

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def deployed() -> Iterator[Deployed]:
    deployed = Deployed()
    deployed.deploy("A")
    yield deployed
    deployed.close()


@pytest.fixture
def profile(plain_chromium: Any) -> Iterator[Any]:
    context = plain_chromium.new_context()
    yield context
    context.close()


def opened(profile: Any, deployed: Deployed) -> Any:
    page = profile.new_page()
    page.goto(deployed.url)
    return page


def version(page: Any) -> str:
    """The version of a page and of all that it loads, which must be one."""
    versions = page.evaluate("versions()")
    assert len(set(versions)) == 1, versions
    return str(versions[0])


WHOLE = """async () => {
  const names = (await caches.keys()).filter((name) => name.split(':').length === 3);
  const whole = [];
  for (const name of names) {
    const cache = await caches.open(name);
    if (!(await cache.match('precache.json'))) continue;
    whole.push((await (await cache.match('part.mjs')).text()).at(-3));
  }
  return whole.sort().join('');
}"""


def kept(page: Any, wanted: str) -> None:
    """Until the whole versions that are kept are ``wanted``."""
    for _ in range(400):
        if page.evaluate(WHOLE) == wanted:
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"{page.evaluate(WHOLE)} is kept, not {wanted}")


def installed(profile: Any, deployed: Deployed) -> Any:
    """A page of version A that the service worker controls."""
    page = opened(profile, deployed)
    page.evaluate("update().then(() => navigator.serviceWorker.ready).then(() => 0)")
    kept(page, "A")
    page.reload()
    assert page.evaluate("Boolean(navigator.serviceWorker.controller)")
    return page


def test_a_new_version_is_used_when_the_page_starts_next(profile: Any, deployed: Deployed) -> None:
    page = installed(profile, deployed)
    deployed.deploy("B")
    assert version(page) == "A"
    page.reload()
    assert version(page) == "A", "not fetched yet"
    page.evaluate("update()")
    kept(page, "AB")
    assert version(page) == "A", "an open page stays as it is"
    page.reload()
    assert version(page) == "B"
    kept(page, "B")
    deployed.close()
    page.reload()
    assert version(page) == "B", "without a network"


def test_open_tabs_stay_with_their_version(profile: Any, deployed: Deployed) -> None:
    first = installed(profile, deployed)
    second = opened(profile, deployed)
    deployed.deploy("B")
    first.evaluate("update()")
    kept(first, "AB")
    first.reload()
    third = opened(profile, deployed)
    assert [version(page) for page in (first, second, third)] == ["A"] * 3
    third.close()
    second.close()
    first.reload()
    assert version(first) == "B"
    assert version(opened(profile, deployed)) == "B"


def test_two_tabs_are_opened_at_once(profile: Any, deployed: Deployed) -> None:
    """Neither has a document yet when the other asks for its page."""
    installed(profile, deployed).close()
    for i in range(3):
        newer = "BA"[i % 2]
        page = opened(profile, deployed)
        deployed.deploy(newer)
        page.evaluate("update()")
        kept(page, "AB")
        page.goto("about:blank")
        pages = [page, profile.new_page(), profile.new_page()]
        for each in pages:
            each.evaluate("(url) => void setTimeout(() => (location.href = url), 0)", deployed.url)
        for each in pages:
            each.wait_for_url(deployed.url)
            each.wait_for_load_state()
        found = [version(each) for each in pages]
        assert len(set(found)) == 1, found
        for each in pages:
            each.close()
        # whoever comes next, alone, has the new one
        page = opened(profile, deployed)
        for _ in range(40):
            if version(page) == newer:
                break
            page.wait_for_timeout(300)
            page.reload()
        assert version(page) == newer
        kept(page, newer)
        page.close()


@pytest.mark.parametrize("back", [False, True], ids=["forward", "and back again"])
def test_the_site_changes_while_it_is_fetched(profile: Any, deployed: Deployed, back: bool) -> None:
    """Files of two versions never make one, also not when the first version comes back."""
    page = installed(profile, deployed)
    deployed.deploy("B")
    count = 0

    def change(path: str) -> None:
        nonlocal count
        count += path != "precache.json"
        if count == 4:
            deployed.deploy("C")

    deployed.on_request = change
    page.evaluate("update()")
    page.wait_for_timeout(600)
    assert count >= 4
    deployed.on_request = lambda path: None
    kept(page, "A")
    if back:
        deployed.deploy("B")
    page.evaluate("update()")
    newer = "B" if back else "C"
    kept(page, f"A{newer}")
    page.reload()
    assert version(page) == newer


def stop_workers(page: Any) -> None:
    session = page.context.new_cdp_session(page)
    session.send("ServiceWorker.enable")
    session.send("ServiceWorker.stopAllWorkers")
    session.detach()


def test_it_is_killed_at_any_moment(profile: Any, deployed: Deployed) -> None:
    """While it installs and fetches, and before it answers: what is there stays whole, goes on, and
    is put to use. (A request that it dies over may go to the network instead: whether the engine is
    the page's own is checked there too.)"""
    dice = random.Random(2)
    deployed.delay_s = 0.01
    page = opened(profile, deployed)
    for _ in range(5):
        page.evaluate("void update()")
        page.wait_for_timeout(dice.uniform(0, 60))
        stop_workers(page)
        assert version(page) == "A"
    page.evaluate("update().then(() => navigator.serviceWorker.ready).then(() => 0)")
    kept(page, "A")
    page.reload()
    deployed.deploy("B")
    for _ in range(8):
        page.evaluate("void update()")
        page.wait_for_timeout(dice.uniform(0, 60))
        stop_workers(page)
        assert version(page) == "A"
    page.evaluate("update()")
    kept(page, "AB")
    stop_workers(page)
    page.reload()
    assert version(page) == "B"
    kept(page, "B")


def test_without_the_new_version_the_old_one_goes_on(profile: Any, deployed: Deployed) -> None:
    """A file is missing or other than it should be: nothing changes."""
    page = installed(profile, deployed)
    deployed.deploy("B")
    deployed.files["part.mjs"] = b"export const part = 'X';"
    page.evaluate("update()")
    page.wait_for_timeout(400)
    kept(page, "A")
    del deployed.files["part.mjs"]
    page.evaluate("update()")
    page.wait_for_timeout(400)
    kept(page, "A")
    page.reload()
    assert version(page) == "A"


def test_the_list_of_models_may_differ_from_what_was_built(
    profile: Any, deployed: Deployed
) -> None:
    deployed.files["models.json"] = b'{"mine": 1}'
    page = installed(profile, deployed)
    assert page.evaluate("fetch('models.json').then((r) => r.json())") == {"mine": 1}
    files = json.loads(deployed.files["precache.json"])["files"]
    assert files["part.mjs"] == hashlib.sha256(deployed.files["part.mjs"]).hexdigest()


@pytest.mark.parametrize("path", ["precache.json", BIG])
def test_the_offline_copy_is_removed_while_it_is_made(
    profile: Any, deployed: Deployed, path: str
) -> None:
    """At its very beginning, and when some of it is here."""
    page = installed(profile, deployed)
    page.evaluate("caches.open('octavo-models').then((cache) => cache.put('m', new Response('m')))")
    deployed.deploy("B")
    reached, removed = threading.Event(), threading.Event()

    def wait(asked: str) -> None:
        if asked == path:
            reached.set()
            removed.wait(10)

    deployed.on_request = wait
    page.evaluate("void update()")
    assert reached.wait(10)
    page.evaluate("import('./offline.mjs').then(({removeOffline}) => removeOffline())")
    removed.set()
    page.wait_for_timeout(500)
    assert page.evaluate("caches.keys()") == ["octavo-models"], "models stay"
    page.reload()
    assert page.evaluate("Boolean(navigator.serviceWorker.controller)") is False
    assert version(page) == "B"
    page.evaluate("update()")
    registrations = "navigator.serviceWorker.getRegistrations().then((all) => all.length)"
    assert page.evaluate(registrations) == 0, "and there will be none"


def test_the_offline_copy_is_removed_and_made_again_at_once(
    profile: Any, deployed: Deployed
) -> None:
    """On a page that the worker controls, which stays the same."""
    page = installed(profile, deployed)
    page.evaluate(
        """async () => {
          const {keepOffline, removeOffline} = await import('./offline.mjs');
          await removeOffline();
          await keepOffline();
        }"""
    )
    kept(page, "A")
    deployed.files = {}
    page.reload()
    assert version(page) == "A"
    assert len(page.evaluate("caches.keys()")) == 2, "with the pointer to it"


def test_the_offline_copy_is_removed_while_it_is_registered(
    profile: Any, deployed: Deployed
) -> None:
    page = installed(profile, deployed)
    page.evaluate(
        """async () => {
          const {keepOffline, removeOffline} = await import('./offline.mjs');
          const container = navigator.serviceWorker;
          const register = container.register.bind(container);
          let goOn;
          const removed = new Promise((resolve) => { goOn = resolve; });
          container.register = async (...all) => {
            const registration = await register(...all);
            await removed;
            return registration;
          };
          const keeping = keepOffline();
          await removeOffline();
          goOn();
          await keeping;
        }"""
    )
    page.wait_for_timeout(300)
    assert page.evaluate("caches.keys()") == []
