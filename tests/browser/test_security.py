"""What the site may do and whom it talks to, as `build.py serve` sends it."""

from __future__ import annotations

import pytest

from tests.browser.chat import Chat
from tests.browser.hosted import Hosted, Witness

pytestmark = pytest.mark.browser
TINY = "model=models/tiny/manifest.json&device=cpu&context=512&max_tokens=20"


def noted(chat: Chat) -> list[str]:
    """What the browser says of violations from now on."""
    said: list[str] = []
    chat.page.on(
        "console",
        lambda message: said.append(message.text) if "Content Security" in message.text else None,
    )
    return said


def test_a_whole_session_asks_nobody_but_the_site(
    watched: Chat, hosted: Hosted, witness: Witness
) -> None:
    said = noted(watched)
    page = watched.page
    page.goto(f"{hosted.url}/?{TINY}")
    first = watched.wait_for("ready").ask("Where is the sea?")
    form = {"type": "json_object"}
    watched.complete([{"role": "user", "content": "Hi"}], max_tokens=4, response_format=form)
    watched.hook("prompt").fill("Again")
    watched.hook("prompt").press("Enter")
    page.keyboard.press("Escape")
    watched.wait_for("stopped", "ready")
    watched.hook("reset").click()
    watched.wait_for("ready", "stopped")
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.reload()
    assert watched.wait_for("ready").ask("Where is the sea?") == first
    hosted.requests.clear()
    hosted.close()
    page.reload()
    assert watched.wait_for("ready").anew().ask("Where is the sea?") == first
    assert witness.asked == []
    assert (hosted.reports, said) == ([], [])


def test_workers_ask_only_where_the_policy_lets_them(
    watched: Chat, hosted: Hosted, witness: Witness
) -> None:
    watched.open().error_code()
    fetched = "(url) => fetch(url).then(({status}) => String(status), (error) => error.message)"
    [worker] = watched.page.workers
    assert worker.evaluate(fetched, "http://elsewhere.test/m.gguf") == "Failed to fetch"
    assert witness.asked == [], "no plain http but to this machine"
    assert hosted.is_told("elsewhere.test")
    assert worker.evaluate(fetched, "https://elsewhere.test/m.gguf") == "Failed to fetch"
    witness.until("CONNECT elsewhere.test:443")
    for own in ("http://127.0.0.1:8081/m.gguf", "http://localhost:8081/m.gguf"):
        worker.evaluate(fetched, own)
        witness.until(f"GET {own} ")
    assert watched.page.evaluate(fetched, "https://page.test/") == "Failed to fetch"
    assert not [line for line in witness.asked if "page.test" in line], "the page asks nobody"


# Whether code that comes as text runs: `eval` is called later, when no debugger lends its rights.
TRIES = """() => new Promise((resolve) => setTimeout(() => {
  const tried = {};
  const attempt = (name, run) => {
    try {
      tried[name] = run();
    } catch (error) {
      tried[name] = error.name;
    }
  };
  attempt('eval', () => (0, eval)('1 + 1'));
  attempt('Function', () => new Function('return 2')());
  const wasm = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0);
  attempt('wasm', () => new WebAssembly.Module(wasm) && 'compiles');
  resolve(tried);
}, 0))"""
REFUSED = {"eval": "EvalError", "Function": "EvalError", "wasm": "compiles"}


def test_code_that_comes_as_text_does_not_run(watched: Chat, hosted: Hosted) -> None:
    watched.open().error_code()
    page = watched.page
    assert page.evaluate(TRIES) == REFUSED
    assert [worker.evaluate(TRIES) for worker in page.workers][:1] == [REFUSED]
    ran = page.evaluate(
        """async () => {
          const violated = [];
          addEventListener('securitypolicyviolation', (event) => violated.push(event.blockedURI));
          const script = document.createElement('script');
          script.textContent = 'window.ran = "inline script"';
          document.body.append(script);
          const holder = document.createElement('div');
          holder.innerHTML = `<img src="x.png" onerror="window.ran = 'handler'">
            <a href="javascript:window.ran='link'">a</a><style>body { --ran: 1 }</style>`;
          document.body.append(holder);
          holder.querySelector('a').click();
          const blob = new Blob(['window.ran = "blob"'], {type: 'text/javascript'});
          for (const src of [URL.createObjectURL(blob), 'data:text/javascript,ran=1',
            'https://elsewhere.test/x.js']) {
            const other = document.createElement('script');
            document.body.append(Object.assign(other, {src}));
          }
          await new Promise((resolve) => setTimeout(resolve, 500));
          holder.remove();
          const styled = getComputedStyle(document.body).getPropertyValue('--ran');
          return [window.ran ?? '', styled, new Set(violated).size >= 4];
        }"""
    )
    assert ran == ["", "", True]
