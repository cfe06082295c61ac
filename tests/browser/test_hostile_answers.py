"""What a model writes and what models are called is shown as text: nothing of it runs or is
fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser import xss
from tests.browser.chat import Chat
from tests.browser.hosted import Hosted, Witness, replace

pytestmark = pytest.mark.browser
# What is wrong with the elements that show some markdown.
FAULTS = """
  const TAGS = new Set(`a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table
    tbody td th thead tr ul`.split(/\\s+/));
  const ATTRIBUTES = new Set(['href', 'start', 'align', 'target', 'rel']);
  // what the page itself puts around code and pieces of it
  const FRAME = {
    div: {class: /^code-(block|head)$/},
    span: {class: /^(code-language|hljs-[a-z_]+)$/},
    button: {
      class: /^link$/, type: /^button$/, 'data-testid': /^copy-code$/, 'aria-label': /^Copy code/,
    },
    pre: {class: /^$/},
    code: {class: /^$/},
  };
  const isFrame = (e) => FRAME[e.localName]
    && [...e.attributes].every(({name, value}) => FRAME[e.localName][name]?.test(value));
  const faults = (shown) => {
    const found = [];
    for (const e of shown.querySelectorAll(':scope > div *')) {
      if (isFrame(e)) continue;
      if (!TAGS.has(e.localName)) found.push(e.localName);
      for (const {name, value} of e.attributes) {
        if (!ATTRIBUTES.has(name)) found.push(`${e.localName} ${name}`);
        if (name === 'href' && !/^(https?:\\/\\/|mailto:)/i.test(value)) found.push(value);
      }
      if (e.localName === 'a' && e.href && e.rel !== 'noopener noreferrer') found.push('rel');
    }
    return found;
  };
"""
RENDER = f"""async ([texts, piece]) => {{
  {FAULTS}
  const {{MarkdownView}} = await import('./markdown.mjs');
  const wrong = {{}};
  for (const text of texts) {{
    const shown = document.createElement('div');
    document.getElementById('log').append(shown);
    const view = new MarkdownView(shown);
    const step = piece || text.length;
    const found = new Set();
    for (let i = 0; i < text.length; i += step) {{
      view.append(text.slice(i, i + step));
      view.finish();
      for (const fault of faults(shown)) found.add(fault);
    }}
    for (const link of shown.querySelectorAll('a')) {{
      link.addEventListener('click', (event) => event.preventDefault());
      link.click();
    }}
    if (found.size) wrong[text] = [...found];
  }}
  await new Promise((resolve) => setTimeout(resolve, 300));
  return wrong;
}}"""


def harmless(chat: Chat, hosted: Hosted, witness: Witness) -> None:
    """Nothing has run, and nobody was asked for anything."""
    assert chat.page.evaluate("window.ran ?? 'nothing'") == "nothing"
    assert chat.page.evaluate("document.baseURI").startswith(hosted.url)
    assert witness.asked == []
    assert not [path for path in hosted.requests if "evil" in path or path.endswith("/x")]
    assert hosted.reports == [], "the policy is a second wall, which nothing reaches"


def test_the_corpus_is_shown_as_text(watched: Chat, hosted: Hosted, witness: Witness) -> None:
    """Whole, by characters and in pieces: what is half there is rendered too."""
    watched.open().error_code()
    for piece in (0, 1, 7):
        texts = [text for text in xss.CORPUS if len(text) < 1000 or not piece]
        assert watched.page.evaluate(RENDER, [texts, piece]) == {}
    harmless(watched, hosted, witness)


def test_what_is_harmless_stays(watched: Chat) -> None:
    watched.open().error_code()
    shown = watched.page.evaluate(
        """async () => {
          const {MarkdownView} = await import('./markdown.mjs');
          const shown = document.createElement('div');
          const view = new MarkdownView(shown);
          view.append('**a** [b](https://c.test/) ![d](https://e.test/f.png) <i>');
          view.finish();
          return shown.innerHTML;
        }"""
    )
    link = 'target="_blank" rel="noopener noreferrer"'
    assert shown == (
        f'<div dir="auto"><p><strong>a</strong> <a href="https://c.test/" {link}>b</a> '
        f'<a href="https://e.test/f.png" {link}>d</a> &lt;i&gt;</p></div>'
    )


# The page's engine says what it is told to, as answer and as reasoning.
SAY = """(texts) => {
  octavo.chat.completions.create = async function* () {
    let num_tokens = 0;
    const chunk = (delta, finish_reason = null) =>
      ({choices: [{delta, finish_reason}], octavo: {num_tokens: ++num_tokens}});
    for (const text of texts) {
      yield chunk({reasoning_content: `${text}\\n\\n`});
      for (let i = 0; i < text.length; i += 40) yield chunk({content: text.slice(i, i + 40)});
      yield chunk({content: '\\n\\n'});
    }
    yield chunk({}, 'stop');
  };
}"""


def test_the_corpus_as_an_answer_and_its_reasoning(
    watched: Chat, hosted: Hosted, witness: Witness
) -> None:
    page = watched.page
    page.goto(f"{hosted.url}/?model=models/tiny/manifest.json&device=cpu&context=512")
    watched.wait_for("ready")
    texts = [text for text in xss.CORPUS if len(text) < 1000]
    page.evaluate(SAY, texts)
    watched.ask("<img src=x onerror=window.ran=1>")
    found = page.evaluate(
        f"""() => {{
          {FAULTS}
          return [faults(document.querySelector('[data-testid=answer]')),
            document.querySelectorAll('.reasoning .text *, .question .text *').length,
            document.querySelector('.reasoning .text').textContent.length];
        }}"""
    )
    assert found[:2] == [[], 0]
    assert found[2] == sum(len(text.encode("utf-16-le")) // 2 + 2 for text in texts)
    harmless(watched, hosted, witness)


MARKUP = "<img src=evil onerror=window.ran=1><script>window.ran=1</script>"
DROP = """(name) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(['no model'], name));
  dispatchEvent(new DragEvent('drop', {dataTransfer}));
}"""


def test_names_and_errors_are_text(
    watched: Chat, hosted: Hosted, witness: Witness, site_copy: Path
) -> None:
    """Of models, files, licences and whatever went wrong."""
    manifest = site_copy / "models/tiny/manifest.json"
    catalogue = site_copy / "models.json"
    before = manifest.read_bytes(), catalogue.read_bytes()
    entry: dict[str, Any] = {"id": MARKUP, "name": MARKUP, "license": MARKUP, "size": 1}
    entry["address"] = "models/tiny/manifest.json"
    replace(manifest, json.dumps({**json.loads(before[0]), "name": MARKUP}).encode())
    replace(catalogue, json.dumps({"default": MARKUP, "models": [entry]}).encode())
    try:
        page = watched.page
        page.goto(f"{hosted.url}/?device=cpu&context=512")
        watched.wait_for("ready")
        watched.hook("model").click()
        item = watched.page.get_by_test_id("model-item")
        item.first.wait_for()
        assert item.first.inner_text().count(MARKUP) == 2
        assert item.locator("img, script").count() == 0
        watched.hook("models-close").click()
        page.evaluate(DROP, f"{MARKUP.replace('/', ' ')}.gguf")
        assert watched.error_code() == "gguf.invalid"
        page.evaluate("(text) => void Promise.reject(new Error(text))", MARKUP)
        watched.until("document.getElementById('error-message').textContent.includes('<img')")
        shown = (
            "#error-message *, #error-hint *, #model *, #notice *, #device *, .progress-text img"
        )
        assert page.locator(shown).count() == 0
        harmless(watched, hosted, witness)
    finally:
        replace(manifest, before[0])
        replace(catalogue, before[1])
