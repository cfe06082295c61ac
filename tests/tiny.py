"""The tiny model: its file, and how an independent implementation goes on with its prompts."""

from __future__ import annotations

import json
from typing import Any

from tests.conftest import ROOT

TINY = ROOT / "tests/golden/tiny.gguf"
# Each with `prompt_ids` and the `ids` that follow; conversations have `messages` too.
PROMPTS: list[dict[str, Any]] = json.loads(TINY.with_suffix(".json").read_text(encoding="utf-8"))[
    "prompts"
]
CHATS = [prompt for prompt in PROMPTS if "messages" in prompt]
SHIP, RAIN = CHATS
LONG_PROMPT = PROMPTS[3]  # 130 tokens
HELLO = SHIP["messages"]
