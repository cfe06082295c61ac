"""Text files that go along with a question: chosen, dropped or pasted, counted, kept, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.acting import choose, menu, put, saved, tab_to, texts, until_chips
from tests.browser.chat import Chat
from tests.browser.scripted_engine import scripted

pytestmark = pytest.mark.browser
NOTES = "One line.\n```\nanother\n"
HOSTILE = '<img src=x onerror=window.ran=1>\u202etxt.exe\n# "a.md'
DROP = """([name, content]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([content], name));
  dispatchEvent(new DragEvent('drop', {dataTransfer}));
}"""
# Whether the page, and not the box, takes a text.
DROP_TEXT = """() => {
  const dataTransfer = new DataTransfer();
  dataTransfer.setData('text/plain', 'some words');
  const event = new DragEvent('drop', {dataTransfer, bubbles: true, cancelable: true});
  return !document.querySelector('[data-testid=prompt]').dispatchEvent(event);
}"""
PASTE = """(text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData('text/plain', text);
  const event = new ClipboardEvent('paste', {clipboardData, cancelable: true});
  return !document.querySelector('[data-testid=prompt]').dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def chat(site: Any, plain_chromium: Any) -> Iterator[Chat]:
    """A page whose engine answers what it is asked."""
    with scripted(plain_chromium, site, {}, context=2000) as chat:
        yield chat
        assert chat.page.evaluate("window.ran") is None


def kept(chat: Chat) -> list[str]:
    found: list[str] = chat.page.evaluate(
        """async () => {
          const done = (request) =>
            new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
          const db = await done(indexedDB.open('octavo-conversations'));
          const all = await done(db.transaction('messages').objectStore('messages').getAll());
          db.close();
          return all.sort((a, b) => a.created - b.created).map(({content}) => content);
        }"""
    )
    return found


def test_files_go_along_and_stay(chat: Chat) -> None:
    choose(chat, notes_txt=NOTES, utf_txt=b"\xff\xfe" + "Grüße".encode("utf-16-le"))
    until_chips(chat, 2)
    chat.page.evaluate(DROP, [HOSTILE, "<b>bold</b> </textarea><script>window.ran=1</script>"])
    until_chips(chat, 3)
    chat.until("/ tokens/.test(document.querySelector('#attached').innerText)")
    assert "22 bytes" in texts(chat, "chip")[0]
    # by keyboard: the second goes, and the focus to the one in its place
    chat.hook("prompt").focus()
    tab_to(chat, "file-remove", backwards=True)
    chat.page.keyboard.press("Shift+Tab")
    chat.page.keyboard.press("Enter")
    until_chips(chat, 2)
    assert chat.page.evaluate("document.activeElement.ariaLabel").startswith("Remove <img src=x")
    chat.hook("prompt").fill("What is this?")
    chat.until("document.querySelector('#count').innerText.includes('of 2,000 tokens')")
    chat.hook("prompt").press("Enter")
    chat.until("document.querySelector('.answer[aria-busy=false]')")
    chat.wait_for("ready")
    name = '<img src=x onerror=window.ran=1> txt.exe # "a.md'
    expected = (
        f'File "notes.txt":\n````\n{NOTES}````\n\nFile "{name}":\n```\n'
        "<b>bold</b> </textarea><script>window.ran=1</script>\n```\n\nWhat is this?"
    )
    assert kept(chat)[-2:] == ["What is this?", expected]
    assert texts(chat, "question") == ["What is this?"]
    assert chat.page.locator(".question [data-testid=chip]").count() == 2
    assert chat.page.locator(".question img, .question script, .question b").count() == 0
    until_chips(chat, 0)

    # an edit keeps the files, or drops one
    chat.hook("edit").click()
    chat.page.locator(".edit [data-testid=file-remove]").last.click()
    chat.hook("edit-text").fill("And now?")
    chat.hook("edit-text").press("Enter")
    chat.until("document.querySelector('.answer[aria-busy=false]')")
    chat.wait_for("ready")
    assert kept(chat)[-1] == f'File "notes.txt":\n````\n{NOTES}````\n\nAnd now?'
    assert texts(chat, "branch") == ["2/2"]

    # files of conversations have them too
    one = json.loads(saved(chat, lambda: menu(chat, "What is this?", "export-json")))
    messages = one["conversations"][0]["messages"]
    assert messages[2]["files"] == [{"name": "notes.txt", "size": 22, "text": NOTES}]
    assert f"````\n{NOTES}````" in saved(
        chat, lambda: menu(chat, "What is this?", "export-markdown")
    )
    chat.anew()
    assert "imported" in put(chat, one)
    chat.page.get_by_test_id("conversation-open").first.click()
    chat.until("document.querySelector('.question [data-testid=chip]')")
    assert texts(chat, "chip") == ["notes.txt\n22 bytes"]
    messages[0]["files"] = [{"name": 1, "size": 1, "text": ""}]
    assert "damaged" in put(chat, one)
    chat.anew()


def test_what_is_no_text_or_too_much_is_refused(chat: Chat) -> None:
    for data, sentence in (
        (b"\x89PNG\r\n\x1a\n\0\0", "is no text"),
        (b"caf\xe9", "is no text"),
        (b"h\0i\0", "is no text"),
        (b" \n", "is empty"),
        (b"a" * 2_000_001, "larger than 2 MB"),
    ):
        choose(chat, some_bin=data)
        chat.until(f"document.querySelector('#error-message').innerText.includes('{sentence}')")
        assert chat.page.locator("#error-message").inner_text().startswith("some.bin")
        chat.page.locator("#dismiss").click()
    until_chips(chat, 0)
    assert not chat.page.evaluate(PASTE, "short"), "is pasted as it is"
    assert chat.page.evaluate(PASTE, "long " * 400_001)
    chat.until("document.querySelector('#error-message').innerText.includes('2 MB')")
    chat.page.locator("#dismiss").click()
    assert not chat.page.evaluate(DROP_TEXT), "is dropped where it was"
    choose(chat, many_md="` " * 200_000)
    until_chips(chat, 1)
    chat.until("/ tokens/.test(document.querySelector('#attached').innerText)")
    chat.hook("file-remove").click()
    until_chips(chat, 0)
    assert chat.hook("error").is_hidden()
    assert chat.page.evaluate(PASTE, "long " * 1200)
    until_chips(chat, 1)
    chat.until("document.querySelector('#count').innerText.startsWith('This does not fit')")
    chat.hook("send").click()
    assert chat.error_code() == "prompt.too_long"
    until_chips(chat, 1)
    assert texts(chat, "question") == []
    chat.hook("file-remove").click()
    chat.until("document.querySelector('#count').hidden")
    choose(chat, **{f"f{i}_txt": "x" for i in range(11)})
    until_chips(chat, 10)
    assert "at most 10" in chat.page.locator("#error-message").inner_text()
