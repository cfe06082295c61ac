"""Messages -> token ids: the model's template around them, and nothing in them that is read as a
control token.

A control token's text inside a message is broken by a mark that occurs nowhere else; the rendered
prompt is cut at the marks, and its pieces are encoded apart. The mark itself never reaches the
model.

    user:  say <|im_end|>   ->   ...user\\nsay <|im_ | end|><|im_end|>\\n...

What a template itself writes as markup, like <tool_response>, is guarded in the same way where
others write: users and tools. In what the assistant or the system message says it is markup, and a
template may look for a think part.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.chat import ChatTemplate
from engine.config import MAX_STOP, GenerateConfig
from engine.errors import OctavoError
from engine.ops.kv_layout import KV_BLOCK
from engine.reasoning import Reasoning
from engine.tokenizer import Encoder
from engine.tokenizer.pieces import CONTINUES
from engine.tokenizer.spec import SpecialTokens
from engine.tokenizer.vocabulary import THINK_CLOSE, THINK_OPEN

MARKS = range(0xE000, 0xF900)  # Unicode's private use area
THINK_TAGS = {THINK_OPEN, THINK_CLOSE}


@dataclass(frozen=True)
class Prompt:
    """Token ids, and where the text after them stands.

    The last ``answered`` ids are the beginning of an answer that goes on; its text ended with
    ``tail``, and then ``rest``, bytes of a character that was cut. With ``strip_space``, a space
    that begins the answer is the tokenizer's.
    """

    ids: list[int]
    reasoning: Reasoning = field(default_factory=Reasoning)
    answered: int = 0
    rest: bytes = b""
    tail: str = ""
    strip_space: bool = False

    @property
    def begins(self) -> int:
        """Where the answer begins in the ids."""
        return len(self.ids) - self.answered


class Prompts:
    """Encodes conversations for one model; ``controls`` are the texts of its control tokens,
    ``markup`` those of other tokens that look like tags."""

    def __init__(
        self,
        template: ChatTemplate,
        encoder: Encoder,
        special: SpecialTokens,
        controls: Iterable[str],
        markup: Iterable[str] = (),
    ) -> None:
        self._template = template
        self._encoder = encoder
        self._special = special
        control = {text for text in controls if len(text) > 1}
        markup = set(markup)
        has_both = THINK_TAGS.issubset(control | markup)
        self._reasons = has_both or any(map(template.mentions, THINK_TAGS))
        written = {tag for tag in markup if template.mentions(tag)}
        self._guard = _Guard(control | written | (THINK_TAGS if self._reasons else set()))
        self._guard_own = _Guard(control - THINK_TAGS if self._reasons else control)

    async def encode(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        goes_on: bool = False,
    ) -> Prompt:
        """A conversation, ready for the assistant's turn; with ``goes_on``, the last message is the
        beginning of that turn. Its text is encoded anew: the model may have cut it otherwise.

        Raises template.invalid, and request.invalid for tools that the template has no place for.
        """
        self._check_place(messages, tools)
        marks = _Marks.unused_in([messages, tools])
        said = [self._guarded(message, marks) for message in messages]
        text = self._template.render(
            said[:-1] if goes_on else said,
            tools=self._guard.broken(tools, marks.mark) if tools else None,
        )
        ids = self._special.begun(await self._ids_of(marks.cut(text)))
        reasoning = self._reasoning_after(text)
        if not goes_on:
            return Prompt(ids, reasoning, strip_space=self._special.space_prefix)
        thought, content = self._thought(said[-1], text), said[-1]["content"]
        ids += await self._ids_behind(text, thought, marks)
        answered = await self._ids_behind(thought or text, content, marks)
        # It was told already; stop strings look at what is past the think part.
        told = [reasoning.push("".join(marks.cut(thought + content))), reasoning.flush()]
        tail = "".join(answer for _, answer in told)[-MAX_STOP:]
        strips = self._special.space_prefix and not (thought or content)
        return Prompt(ids + answered, reasoning, len(answered), tail=tail, strip_space=strips)

    async def _ids_of(self, pieces: list[str], continues: bool = False) -> list[int]:
        """The ids of a text in pieces, which may continue another."""
        joint = CONTINUES if self._special.space_prefix else ""
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            ids += await self._encoder.encode(joint + piece if i or continues else piece)
        return ids

    async def _ids_behind(self, before: str, text: str, marks: _Marks) -> list[int]:
        """The ids of a text that was written behind another. White space there takes the place of
        the tokenizer's own space, unless a control token has swallowed it."""
        last = marks.cut(before)[-1]
        continues = self._special.space_prefix and last != last.rstrip()
        if continues:
            encode = self._encoder.encode
            continues = await encode(last) != await encode(last.rstrip())
        return await self._ids_of(marks.cut(text), continues) if text else []

    def _thought(self, message: dict[str, Any], prompt: str) -> str:
        """The think part as the model had written it behind the prompt, which may have opened it;
        closed, if something follows."""
        if not self._reasons:
            return ""
        is_open, thought = self._opens_thinking(prompt), message.get("reasoning_content", "")
        if not (is_open or thought):
            return ""
        opening = f"{THINK_OPEN}\n"
        if is_open:
            opening = "" if prompt[-1:].isspace() else "\n"
        begun = f"{opening}{thought}" if thought else ""
        return f"{begun}\n{THINK_CLOSE}\n\n" if message["content"] else begun

    def _check_place(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> None:
        used = {"tools": bool(tools), "tool_calls": any("tool_calls" in m for m in messages)}
        for name, is_used in used.items():
            if is_used and not self._template.mentions(name):
                raise OctavoError(
                    "request.invalid", f"The chat template of this model has no place for {name}."
                )

    def _reasoning_after(self, text: str) -> Reasoning:
        """For the answer to a prompt. Some templates open the think part themselves."""
        if not self._reasons:
            return Reasoning()
        return Reasoning("within" if self._opens_thinking(text) else "before")

    @staticmethod
    def _opens_thinking(text: str) -> bool:
        return text.rstrip().endswith(THINK_OPEN)

    def _guarded(self, message: dict[str, Any], marks: _Marks) -> dict[str, Any]:
        own = ("content",) if message["role"] in ("assistant", "system") else ()
        guarded = {}
        for key, value in message.items():
            guard = self._guard_own if key in own else self._guard
            guarded[key] = value if key == "role" else guard.broken(value, marks.mark)
        return guarded


class _Guard:
    """Breaks texts of tokens."""

    def __init__(self, texts: set[str]) -> None:
        # The longest first, so that one which begins like another is found whole.
        ordered = sorted(map(re.escape, texts), key=len, reverse=True)
        self._whole = re.compile("|".join(ordered)) if texts else None
        self._sorted = sorted(texts)
        self._longest = max(map(len, texts), default=0)

    def broken(self, value: Any, mark: str) -> Any:
        """JSON values with a mark in every text of a token, and behind what begins one: the rest
        could stand in the next field."""
        if isinstance(value, str):
            return self._broken_text(value, mark)
        if isinstance(value, list):
            return [self.broken(item, mark) for item in value]
        if isinstance(value, dict):
            return {
                self._broken_text(key, mark): self.broken(item, mark) for key, item in value.items()
            }
        return value

    def _broken_text(self, text: str, mark: str) -> str:
        if not self._whole:
            return text

        def halves(match: re.Match[str]) -> str:
            found = match[0]
            middle = len(found) // 2
            return found[:middle] + mark + found[middle:]

        text = self._whole.sub(halves, text)
        begins = any(self._begins(text[-n:]) for n in range(1, min(self._longest, len(text) + 1)))
        return text + mark if begins else text

    def _begins(self, end: str) -> bool:
        """Whether a token begins with ``end`` and goes on."""
        index = bisect_right(self._sorted, end)
        return index < len(self._sorted) and self._sorted[index].startswith(end)


@dataclass(frozen=True)
class _Marks:
    """A character that occurs in no message, and how templates may write it in JSON."""

    mark: str

    @classmethod
    def unused_in(cls, values: Any) -> _Marks:
        """Raises request.invalid if there is none."""
        texts = list(_texts(values))
        used = {c for text in texts for c in text}
        for code in MARKS:
            marks = cls(chr(code))
            if marks.mark not in used and not any(marks.escaped in text for text in texts):
                return marks
        raise OctavoError("request.invalid", "The messages use every private character of Unicode.")

    @property
    def escaped(self) -> str:
        """In ASCII: so write JSON that escapes, and Python's repr."""
        return f"\\u{ord(self.mark):04x}"

    def cut(self, text: str) -> list[str]:
        """The pieces between the marks."""
        return text.replace(self.escaped, self.mark).split(self.mark)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)


def check_length(ids: Sequence[int], context: int, config: GenerateConfig) -> None:
    """OctavoError prompt.empty, prompt.too_long or, for a context too short to slide,
    request.invalid."""
    if not ids:
        raise OctavoError("prompt.empty", "The prompt has no tokens.")
    if len(ids) >= context and config.context_full == "stop":
        raise OctavoError(
            "prompt.too_long",
            f"The conversation has {len(ids)} tokens; the context holds {context}.",
            "Start a new conversation or shorten the message.",
        )
    if config.context_full == "slide" and context < 2 * KV_BLOCK:
        raise OctavoError("request.invalid", "The context is too short to slide.")
