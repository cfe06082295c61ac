"""The list of conversations: kept, named, searched, deleted, saved as files, and in two tabs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.acting import menu, put, saved, texts
from tests.browser.chat import Chat
from tests.browser.pace import LONG, PACE

pytestmark = pytest.mark.browser
SEA, RAIN = "Where is the sea?", "And the rain?"
# A conversation of one question with two answers, as the page saves it.
FILE: dict[str, Any] = {
    "format": "octavo.conversations",
    "version": 1,
    "conversations": [
        {
            "id": "c",
            "title": "<img src=x onerror=alert(1)>",
            "created": 1,
            "updated": 2,
            "head": "b",
            "messages": [
                {"id": "a", "parent": None, "role": "user", "content": "<b>?</b>", "created": 1},
                {"id": "b", "parent": "a", "role": "assistant", "content": "One.", "created": 2},
                {"id": "d", "parent": "a", "role": "assistant", "content": "Two.", "created": 3},
            ],
        }
    ],
}


def titles(chat: Chat) -> list[str]:
    return texts(chat, "conversation-open")


def until_titles(chat: Chat, *expected: str) -> None:
    shown = "[...document.querySelectorAll('[data-testid=conversation-open]')]"
    chat.until(
        f"JSON.stringify({shown}.map((e) => e.textContent)) === {json.dumps(js(expected))}", 30
    )


def js(value: object) -> str:
    """As JavaScript writes JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def until_answers(chat: Chat, count: int) -> None:
    chat.until(f"document.querySelectorAll('[data-testid=answer]').length === {count}")


def test_conversations_are_kept_found_and_named(tiny_chat: Chat) -> None:
    chat = tiny_chat
    sea = chat.ask(SEA)
    chat.hook("reset").click()
    until_answers(chat, 0)
    rain = chat.ask(RAIN)
    until_titles(chat, RAIN, SEA)
    chat.page.get_by_test_id("conversation-open").last.click()
    chat.until(f"document.querySelector('[data-testid=question]').innerText === '{SEA}'")
    assert chat.answer == sea
    assert chat.page.locator('[aria-current="true"]').inner_text() == SEA
    chat.page.reload()
    until_answers(chat, 1)  # before the model is there
    assert chat.answer == sea
    chat.wait_for("ready").ask("Is it open?")
    until_titles(chat, SEA, RAIN)  # the newest first

    chat.hook("conversation-search").fill(rain[:12])
    until_titles(chat, RAIN)
    chat.hook("conversation-search").fill("nothing has this")
    until_titles(chat)
    assert "Nothing" in chat.page.locator("#side-empty").inner_text()
    chat.hook("conversation-search").fill("")
    until_titles(chat, SEA, RAIN)

    menu(chat, RAIN, "rename")
    chat.hook("conversation-title").fill("Weather")
    chat.hook("conversation-title").press("Escape")
    until_titles(chat, SEA, RAIN)
    menu(chat, RAIN, "rename")
    chat.hook("conversation-title").fill("Weather")
    chat.hook("conversation-title").press("Enter")
    until_titles(chat, SEA, "Weather")


def test_a_deleted_conversation_can_be_had_back(tiny_chat: Chat) -> None:
    chat = tiny_chat
    answers = [chat.ask(SEA), chat.ask(RAIN)]
    menu(chat, SEA, "conversation-delete")
    until_answers(chat, 0)
    until_titles(chat)
    chat.page.get_by_test_id("side-note").get_by_test_id("undo").click()
    until_titles(chat, SEA)
    chat.hook("conversation-open").click()
    until_answers(chat, 2)
    assert texts(chat, "answer") == answers


def test_a_conversation_is_deleted_while_it_is_answered(tiny_chat: Chat, other: Chat) -> None:
    """What there was of the answer can be had back; a page whose conversation goes is ready."""
    chat = tiny_chat
    # the page's clock goes slowly, so that the answer is not kept before it ends
    chat.page.evaluate("performance.now = () => Date.now() / 20")
    for page in (other, chat):
        chat.page.evaluate(PACE, {"endless": True})
        chat.send(LONG)
        chat.until("document.querySelector('.answer')?.innerText.trim().length > 1")
        page.page.get_by_test_id("conversation").first.wait_for()
        menu(page, LONG[:30], "conversation-delete")
        until_answers(chat, 0)
        chat.wait_for("ready")
    chat.page.evaluate(PACE, {})
    chat.page.evaluate("delete performance.now")
    chat.page.get_by_test_id("side-note").get_by_test_id("undo").click()
    chat.hook("conversation-open").click()
    until_answers(chat, 1)
    assert chat.answer
    assert chat.page.locator(".finish").inner_text() == "Stopped."


def test_many_conversations_and_long_questions(tiny_chat: Chat) -> None:
    chat, page = tiny_chat, tiny_chat.page
    chat.ask("a" * 118 + "😀😀")
    until_titles(chat, "a" * 118 + "…")  # no half of a character
    menu(chat, "aaa", "rename")
    chat.hook("conversation-title").fill("\u200b \u2060")  # nothing that can be seen
    chat.hook("conversation-title").press("Enter")
    page.get_by_test_id("conversation-more").wait_for()
    until_titles(chat, "a" * 118 + "…")

    # another conversation is opened while the tokens of a question are counted
    page.evaluate(
        """() => {
          octavo.tokenize = async () => {
            delete octavo.tokenize;
            await new Promise((done) => (window.counted = done));
            return [];
          };
        }"""
    )
    chat.hook("reset").click()
    chat.hook("prompt").fill("sea " * 600)
    chat.hook("prompt").press("Enter")
    chat.until("Boolean(window.counted)")
    assert page.evaluate("document.querySelector('#prompt').readOnly")
    chat.hook("conversation-open").click()
    until_answers(chat, 1)
    page.evaluate("counted()")
    page.wait_for_timeout(300)
    assert chat.state == "ready" and chat.hook("error").is_hidden()
    assert page.get_by_test_id("question").count() == 1
    chat.hook("prompt").fill("")

    # a long one is laid out a few times, not once for each of its messages
    long = copy.deepcopy(FILE)
    long["conversations"][0] |= {"title": " \u200b", "head": "m399", "messages": [
        {"id": f"m{i}", "parent": f"m{i - 1}" if i else None, "created": i + 1,
         "content": f"{i}" if i else "The first one\n", "role": ["user", "assistant"][i % 2]}
        for i in range(400)
    ]}  # fmt: skip
    put(chat, long)
    until_titles(chat, "a" * 118 + "…", "The first one")  # it had none
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def layouts() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "LayoutCount"))

    before = layouts()
    page.get_by_test_id("conversation-open").last.click()
    until_answers(chat, 200)
    assert layouts() - before < 100

    page.evaluate(
        """() => {
          window.draws = [];
          const list = document.querySelector('#conversation-list');
          new MutationObserver(() => draws.push(Date.now())).observe(list, {childList: true});
        }"""
    )
    many = {**FILE, "conversations": FILE["conversations"] * 1000}
    assert put(chat, many) == "Conversations imported: 1,000"
    shown = "document.querySelectorAll('[data-testid=conversation]').length === 1002"
    chat.until(shown)
    chat.until("Date.now() - draws.at(-1) > 500")
    assert page.evaluate("draws.length") < 10

    # the visitor has the browser forget them all; later ones are kept
    where = {"origin": chat.server.url, "storageTypes": "indexeddb"}
    session.send("Storage.clearDataForOrigin", where)
    chat.anew().ask(SEA)
    until_titles(chat, SEA)
    session.detach()


def test_files_of_conversations(tiny_chat: Chat) -> None:
    chat = tiny_chat
    chat.ask(SEA)
    chat.page.get_by_test_id("regenerate").click()
    chat.wait_for("ready")
    answer = chat.answer
    one = json.loads(saved(chat, lambda: menu(chat, SEA, "export-json")))
    assert [m["role"] for m in one["conversations"][0]["messages"]] == ["user", *["assistant"] * 2]
    markdown = saved(chat, lambda: menu(chat, SEA, "export-markdown"))
    assert markdown.startswith(f"# {SEA}\n\n## You\n\n{SEA}\n\n## Octavo\n\n")
    assert answer[:12] in markdown
    chat.hook("reset").click()
    assert put(chat, one) == "Conversations imported: 1"
    until_titles(chat, SEA, SEA)
    everything = json.loads(saved(chat, chat.hook("export-all").click))
    first, second = everything["conversations"]
    assert first["id"] != second["id"], "nothing is overwritten"
    assert [m["content"] for m in first["messages"]] == [m["content"] for m in second["messages"]]
    for item in chat.page.get_by_test_id("conversation-open").all():
        item.click()
        until_answers(chat, 1)
        assert (texts(chat, "branch"), chat.answer) == (["2/2"], answer)


def test_what_a_file_says_is_text(tiny_chat: Chat) -> None:
    chat = tiny_chat
    put(chat, FILE)
    until_titles(chat, FILE["conversations"][0]["title"])
    chat.hook("conversation-open").click()
    until_answers(chat, 1)
    assert texts(chat, "question") == ["<b>?</b>"]
    assert (texts(chat, "branch"), chat.answer) == (["1/2"], "One.")
    assert chat.page.locator("nav img, main img, main b").count() == 0


def broken(**changes: Any) -> dict[str, Any]:
    data = copy.deepcopy(FILE)
    for path, value in changes.items():
        where: Any = data
        *steps, last = path.split("__")
        for step in steps:
            where = where["conversations"][0] if step == "c" else where["messages"][int(step[1:])]
        where[last] = value
    return data


HOSTILE: dict[str, tuple[object, str]] = {
    "no JSON": ("{nothing", "no JSON file"),
    "another file": ({"model": "x"}, "holds no conversations"),
    "null": ("null", "holds no conversations"),
    "a later version": (broken(version=2), "another version"),
    "no list": (broken(conversations={"length": 1}), "damaged"),
    "no conversation": (broken(conversations=[None]), "damaged"),
    "no messages": (broken(c__messages=[]), "damaged"),
    "title": (broken(c__title=["a"]), "damaged"),
    "long title": (broken(c__title="x" * 10_000), "damaged"),
    "time": (broken(c__updated="now"), "damaged"),
    "endless time": (json.dumps(FILE).replace('"updated": 2', '"updated": 1e999'), "damaged"),
    "circle": (broken(c__m0__parent="b"), "damaged"),
    "own parent": (broken(c__m1__parent="b"), "damaged"),
    "unknown parent": (broken(c__m1__parent="z"), "damaged"),
    "no parent": (broken(c__m1__parent=7), "damaged"),
    "older than its parent": (broken(c__m1__created=0), "damaged"),
    "twice": (broken(c__m2__id="b"), "damaged"),
    "role": (broken(c__m1__role="system"), "damaged"),
    "wrong turn": (broken(c__m0__role="assistant"), "damaged"),
    "content": (broken(c__m1__content={"html": "<b>"}), "damaged"),
    "long content": (broken(c__m1__content="x" * 2_000_001), "damaged"),
    "reasoning": (broken(c__m1__reasoning=1), "damaged"),
}


def test_hostile_files_are_refused_with_a_sentence(tiny_chat: Chat) -> None:
    for name, (data, sentence) in HOSTILE.items():
        said = put(tiny_chat, data)
        assert sentence in said, name
        assert "some.json" in said, name
    assert titles(tiny_chat) == []
    assert tiny_chat.page.evaluate("Object.prototype.title") is None


def test_a_page_that_may_keep_nothing_answers_all_the_same(
    open_chat: Callable[..., Chat], plain_chromium: Any
) -> None:
    context = plain_chromium.new_context()
    context.add_init_script(
        """for (const name of ['indexedDB', 'localStorage', 'sessionStorage']) {
          const get = () => { throw new DOMException('blocked', 'SecurityError'); };
          Object.defineProperty(window, name, {get});
        }"""
    )
    query = "model=models/tiny/manifest.json&device=cpu&max_tokens=24"
    chat = open_chat(query, context=context).wait_for("ready")
    first = chat.ask(SEA)
    assert chat.error_code() == "conversation.not_kept"
    chat.ask(RAIN)
    assert texts(chat, "answer")[0] == first
    assert chat.page.get_by_test_id("answer").count() == 2
    context.close()


@pytest.fixture
def other(tiny_chat: Chat) -> Any:
    """Another tab of the same browser."""
    chat = Chat(tiny_chat.page.context.new_page(), tiny_chat.server, tiny_chat.url).open()
    yield chat.wait_for("ready")
    chat.page.close()


# What this browser keeps of the messages, by their content.
KEPT = """async () => {
  const done = (request) =>
    new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
  const db = await done(indexedDB.open('octavo-conversations'));
  const messages = await done(db.transaction('messages').objectStore('messages').getAll());
  db.close();
  return messages.map(({role, content}) => [role, content]);
}"""


def test_two_tabs_lose_nothing_of_each_other(tiny_chat: Chat, other: Chat) -> None:
    chat = tiny_chat
    chat.ask(SEA)
    until_titles(other, SEA)
    other.hook("conversation-open").click()
    until_answers(other, 1)
    other.ask(RAIN)
    until_answers(chat, 2)  # it comes up by itself
    chat.until("!document.querySelector('.answer[aria-busy=true]')")
    assert texts(chat, "question") == [SEA, RAIN]

    # both at once, from the same place: two branches
    chat.page.evaluate(PACE, {"ms": 30})
    other.hook("prompt").fill("There?")
    chat.send("Here?")
    other.until("document.querySelectorAll('[data-testid=question]').length === 3")
    other.hook("prompt").press("Enter")
    for page, branch in ((chat, "1/2"), (other, "2/2")):
        page.wait_for("ready")
        until_answers(page, 3)
        page.until(
            f"document.querySelector('[data-testid=branch]')?.textContent === '{branch}'", 20
        )
    assert texts(chat, "question") == [SEA, RAIN, "Here?"]
    assert texts(other, "question") == [SEA, RAIN, "There?"]
    kept = chat.page.evaluate(KEPT)
    assert sorted(text for role, text in kept if role == "user") == sorted(
        [SEA, RAIN, "Here?", "There?"]
    )
    assert sum(role == "assistant" for role, _ in kept) == 4

    # a title given in one tab while the other writes
    menu(other, SEA, "rename")
    other.hook("conversation-title").fill("Named")
    chat.hook("prompt").fill("And then?")
    chat.hook("prompt").press("Enter")
    other.hook("conversation-title").press("Enter")
    chat.wait_for("ready")
    for page in (chat, other):
        until_titles(page, "Named")
    assert ["user", "And then?"] in chat.page.evaluate(KEPT)

    menu(other, "Named", "conversation-delete")
    until_answers(chat, 0)
    until_titles(chat)
    assert chat.ask(RAIN), "a new conversation"
    until_titles(other, RAIN)
