"""How answers are shown while they grow: always the same work for new text, and the same look as if
they had come at once. How long it takes is measured by tests/bench/streaming.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.browser.long_answers import answers
from tests.browser.scripted_engine import scripted, tokens_of

pytestmark = pytest.mark.browser
TOKENS = 3000
CODE = "```python\ndef f(x):\n    return 'a'  # b\n```"
ANSWER = f"One:\n\n{CODE}\n\n- two\n  ```nothing-that-is-known\n  x < y\n  ```\n\n"
ANSWER += "three\n\n" * 40 + "end"
SCRIPTS = {
    "all": {"reasoning": tokens_of("Let me see. " * 130), "answer": tokens_of(ANSWER)},
    "long": {"answer": tokens_of("word\n\n" * 9000)},
}
# Shows a text piece by piece. Returns the most that was done for one of them, in characters that
# were read, in those that were cleaned, and in nodes that were made; and how it looks in the end.
GROW = """async ([text, piece]) => {
  const { Flow } = await import('./flow.mjs');
  const { Marked } = await import('./vendor/marked.esm.js');
  const DOMPurify = (await import('./vendor/purify.es.mjs')).default;
  const { lexer } = Marked.prototype;
  const { sanitize } = DOMPurify;
  let [read, cleaned] = [0, 0];
  Marked.prototype.lexer = function (source) {
    read += source.length;
    return lexer.call(this, source);
  };
  DOMPurify.sanitize = (html, options) => {
    cleaned += html.length;
    return sanitize.call(DOMPurify, html, options);
  };
  const shown = document.createElement('div');
  const observer = new MutationObserver(() => {});
  observer.observe(shown, {childList: true, subtree: true});
  const size = (node) => 1 + [...node.childNodes].reduce((sum, child) => sum + size(child), 0);
  const most = {read: 0, cleaned: 0, made: 0};
  const flow = new Flow(shown);
  for (let i = 0; i < text.length; i += piece) {
    [read, cleaned] = [0, 0];
    flow.append(text.slice(i, i + piece));
    flow.render();
    const added = observer.takeRecords().flatMap(({addedNodes}) => [...addedNodes]);
    const made = added.reduce((sum, node) => sum + size(node), 0);
    for (const [name, done] of Object.entries({read, cleaned, made})) {
      most[name] = Math.max(most[name], done);
    }
  }
  flow.finish();
  Object.assign(Marked.prototype, {lexer});
  DOMPurify.sanitize = sanitize;
  for (const code of shown.querySelectorAll('code')) code.textContent = code.textContent;
  const [inner, spaces] = ['ul, ol, table, thead, tbody, tr', /^\\s*$/];
  for (const e of shown.querySelectorAll(inner)) {
    for (const node of [...e.childNodes]) if (spaces.test(node.data ?? 'e')) node.remove();
  }
  shown.normalize();
  return {most, html: shown.innerHTML};
}"""


@pytest.fixture(scope="module")
def chat(site: Any, plain_chromium: Any) -> Iterator[Chat]:
    """One page for all tests here; 400 tokens come in a second."""
    with scripted(plain_chromium, site, SCRIPTS, tokens_per_s=400) as chat:
        yield chat


# However long it is, a block stays one.
ONE = {"code": "<pre", "list": "<ol", "table": "<table", "paragraph": "<p>", "lines": "<p>"}
HOLDER = '<div dir="auto">'
ONE |= {"one item": f"{HOLDER}<p>x</p></div>{HOLDER}<ul", "quotation": "<blockquote"}


@pytest.mark.parametrize("kind", answers(1))
def test_new_text_costs_the_same_however_long_the_answer_is(chat: Chat, kind: str) -> None:
    text = answers(TOKENS)[kind]
    grown = chat.page.evaluate(GROW, [text, 40])
    # a few windows of 2000 characters at most; each character of HTML has a few of markup beside it
    assert grown["most"]["read"] <= 6000
    assert grown["most"]["cleaned"] <= 16_000
    assert grown["most"]["made"] <= 1200
    assert len(text) > 11_000
    whole = chat.page.evaluate(GROW, [text, len(text)])
    assert grown["html"] == whole["html"]
    assert kind == "mixed" or grown["html"].count(ONE[kind]) == 1


SMALL = (
    "1. a\n\n2. b\n\n---\n- a\n- b\n- c\n- d\n- e\n\n  f\n- g\n\na\n\n"
    "1. b\n2. c\n   more\n\n   - d\n3. e\n\n* f\n* g\n\n| h | i |\n|---|--:|\n| j | k |\n"
    "| l | m |\n\n> n\n> o\n\np\n===\n\n````md\n```\nq\n````\n\n    r\n\n<b>\ns\n\n- t\n\n  ~~~js\n"
    "  u\n  ~~~\n-\n\n---\n**v\n\nw** `x` [y](https://z.test)\n\n```\n\n"
)


def test_any_pieces_make_the_same(chat: Chat) -> None:
    whole = chat.page.evaluate(GROW, [SMALL, len(SMALL)])["html"]
    for piece in (1, 2, 3, 7, 20):
        assert chat.page.evaluate(GROW, [SMALL, piece])["html"] == whole, piece
    for tag, count in (("<li", 16), ("<tr", 3), ("<pre", 4), ("<h1", 1), ("<blockquote", 1)):
        assert whole.count(tag) == count, tag


# What stands above the reasoning while an answer comes.
WATCH = """() => {
  window.headings = new Set();
  new MutationObserver(() => {
    const heading = document.querySelector('.reasoning summary')?.innerText;
    const {state} = document.querySelector('[data-testid=status]').dataset;
    if (heading && state === 'generating') headings.add(heading);
  }).observe(document.querySelector('main'), {childList: true, subtree: true});
}"""


def test_code_has_colours_a_name_and_a_button(chat: Chat) -> None:
    page = chat.page
    page.evaluate(WATCH)
    chat.ask("all")
    thinking, thought = page.evaluate("[...headings]")
    assert thinking == "Thinking…"
    assert re.fullmatch(r"Thought for \d+ s", thought)
    said = page.evaluate("document.querySelector('#announcer').lastChild.textContent")
    aloud = " ".join(CODE[3:-3].split())
    assert said.startswith(f"One: {aloud} two nothing-that-is-known x < y three three"), "no button"
    page.wait_for_selector(".hljs-keyword")
    assert page.locator(".answer .hljs-string").inner_text() == "'a'"
    assert page.locator(".code-language").all_inner_texts() == ["python", "nothing-that-is-known"]
    assert page.locator(".code-block").last.locator("code").inner_html() == "x &lt; y\n"
    copy = page.get_by_test_id("copy-code").first
    assert copy.get_attribute("aria-label") == "Copy code (python)"
    copy.focus()
    page.keyboard.press("Enter")
    chat.until("document.querySelector('[data-testid=copy-code]').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") + "\n```" == CODE[10:]
    assert not page.evaluate("document.querySelectorAll('.answer [style]').length")
    chat.anew()


# How much two colours differ, by WCAG: of all code on the page, the least.
CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const block = document.querySelector('.code-block');
  const back = light(getComputedStyle(block).backgroundColor);
  const names = 'comment keyword string number title type meta'.split(' ');
  return Math.min(...names.map((name) => {
    const run = document.createElement('span');
    run.className = `hljs-${name}`;
    block.append(run);
    const front = light(getComputedStyle(run).color);
    run.remove();
    return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  }));
}"""


def test_scrolling_and_escape_while_an_answer_grows(chat: Chat) -> None:
    page = chat.page
    chat.ask("all")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) >= 4.5
    chat.send("long")
    at = "document.getElementById('scroll').scrollTop"
    chat.until(f"window.before === ({at}) ? false : ((window.before = {at}) > 1500)")
    page.mouse.move(600, 300)
    page.mouse.wheel(0, -700)
    page.wait_for_timeout(200)
    top = page.evaluate(at)
    height = page.evaluate("document.getElementById('log').offsetHeight")
    chat.until(f"document.getElementById('log').offsetHeight > {height} + 300")
    assert page.evaluate(at) == top, "it grows below, out of sight"
    chat.hook("conversation-search").focus()
    page.keyboard.type("a")
    page.keyboard.press("Escape")  # clears what was typed
    chat.until("document.getElementById('conversation-search').value === ''")
    assert chat.state == "generating"
    page.keyboard.press("Escape")
    chat.wait_for("stopped", timeout=8000)
    words = chat.answer.count("word")
    assert words > 20
    chat.hook("conversation-search").fill("")
    chat.hook("continue").click()
    chat.until(
        f"document.querySelector('.reply:last-child').innerText.split('word').length > {words + 9}",
        5,
    )
    page.keyboard.press("Escape")
    chat.wait_for("stopped", timeout=8000)
    assert chat.answer.count("word") > words
    chat.anew()
