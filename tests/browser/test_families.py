"""Models of each family in the page, on both devices: what they say is what the oracle says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.browser.conftest import cut, link_site
from tests.conftest import ROOT, StaticServer

GOLDEN = ROOT / "tests/golden"
pytestmark = [pytest.mark.browser, pytest.mark.golden]


@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize(
    "name", ["tiny_qwen2", "tiny_llama3", "tiny_qwen3", "tiny_gemma3", "tiny_phi3"]
)
def test_a_chat_equals_the_oracle(
    name: str, device: str, tmp_path: Path, plain_chromium: Any, gpu_chromium: Any
) -> None:
    root = link_site(tmp_path / "root")
    cut(GOLDEN / f"{name}.gguf", root / "models" / name)
    document = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    prompt = next(p for p in document["prompts"] if "messages" in p)
    server = StaticServer(root)
    browser = gpu_chromium if device == "gpu" else plain_chromium
    context = browser.new_context(service_workers="block")
    try:
        query = f"model=models/{name}/manifest.json&device={device}&context=512"
        chat = Chat(context.new_page(), server, f"{server.url}/?{query}").open()
        chat.wait_for("ready")
        completion = chat.complete(prompt["messages"], max_tokens=200, temperature=0)
        assert completion["octavo"]["ids"] == prompt["ids"]
    finally:
        context.close()
        server.close()
