"""The page with an engine that says what a test has written down: see scripted_worker.mjs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.chat import Chat
from tests.conftest import StaticServer

WORKER = (Path(__file__).parent / "scripted_worker.mjs").read_text(encoding="utf-8")
Script = dict[str, list[str]]  # "answer" and "reasoning": texts of tokens


def tokens_of(text: str) -> list[str]:
    """About what a tokenizer makes of a text: pieces of four characters."""
    return [text[i : i + 4] for i in range(0, len(text), 4)]


@contextmanager
def scripted(
    browser: Any, site: Path, scripts: dict[str, Script], **options: Any
) -> Iterator[Chat]:
    """A page as ``open_scripted`` opens it, with a server of its own; it may not throw."""
    server = StaticServer(site)
    chat = open_scripted(browser, server, scripts, **options)
    problems: list[str] = []
    chat.page.on("pageerror", lambda error: problems.append(str(error)))
    yield chat
    chat.page.context.close()
    server.close()
    assert not problems, "the page threw"


def open_scripted(
    browser: Any,
    server: Any,
    scripts: dict[str, Script],
    *,
    tokens_per_s: float = 0,
    context: int = 8192,
    **options: Any,
) -> Chat:
    """A page in a profile of its own; without ``tokens_per_s``, answers come as fast as can be."""
    source = WORKER
    for old, new in (
        ("SCRIPTS = {}", f"SCRIPTS = {json.dumps(scripts)}"),
        ("TOKENS_PER_S = 0", f"TOKENS_PER_S = {tokens_per_s}"),
        ("CONTEXT = 8192", f"CONTEXT = {context}"),
    ):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    profile = browser.new_context(
        service_workers="block", permissions=["clipboard-read", "clipboard-write"], **options
    )
    profile.route(
        "**/worker/worker.mjs*",
        lambda route: route.fulfill(body=source, content_type="text/javascript"),
    )
    return Chat(profile.new_page(), server, server.url).open().wait_for("ready")
