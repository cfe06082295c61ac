"""Templates for files without one: chosen by the vocabulary, in the family's own form."""

from __future__ import annotations

from typing import Any

import pytest

from engine.chat import ChatTemplate
from engine.templates import FALLBACKS, PLAIN, fallback
from tests.unit.rendering import (
    BOS,
    CONVERSATIONS,
    EOS,
    SOURCES,
    THOUGHT,
    TURNS,
    WITH_SYSTEM,
    reference,
)

LLAMA3 = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
DEEPSEEK = ["<｜User｜>", "<｜Assistant｜>"]
GEMMA = ["<start_of_turn>", "<end_of_turn>"]
CHATML = ["<|im_start|>", "<|im_end|>"]
PHI3 = ["<|user|>", "<|assistant|>", "<|end|>"]
MISTRAL = ["[INST]", "[/INST]"]
# Marks in the vocabulary -> the template in tests/unit/templates that says the same.
LIKE = {
    (*DEEPSEEK, "<think>"): "deepseek_r1",
    tuple(GEMMA): "gemma3",
    tuple(CHATML): "chatml",
    tuple(PHI3): "phi3",
    (*MISTRAL, "\u2581"): "mistral",
    tuple(MISTRAL): "mistral_nemo",
}


def render(marks: Any, messages: list[dict[str, Any]], prompt: bool = True) -> str:
    vocabulary = ["a", "b", *marks, "c"]
    return ChatTemplate(fallback(vocabulary), BOS, EOS).render(messages, prompt)


@pytest.mark.parametrize(
    ("marks", "conversation"),
    [
        (marks, conversation)
        for marks in LIKE
        for conversation in ("user", "turns", "system")
        if (conversation, "[INST]") != ("system", marks[0])  # Mistral's own puts it last
    ],
)
def test_as_the_family_has_it(marks: tuple[str, ...], conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    text = reference(SOURCES[LIKE[marks]], messages, None, True)
    assert render(marks, messages) == text.removeprefix(BOS)  # the tokenizer's part


@pytest.mark.parametrize("marks", [GEMMA, MISTRAL])
def test_all_that_leads_goes_before_the_first_text(marks: list[str]) -> None:
    leading = [{"role": "system", "content": text} for text in ("One.", "Two.")]
    assert "One.\n\nTwo.\n\nHi" in render(marks, [*leading, {"role": "user", "content": "Hi"}])


LLAMA3_TEXT = (
    "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)

CHATML_TEXT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        (LLAMA3, LLAMA3_TEXT),
        # As fine-tuned Llama 3 models have them.
        ([*LLAMA3, *CHATML], CHATML_TEXT),
        (
            DEEPSEEK,
            "Be brief.<｜User｜>Hi<｜Assistant｜>Hello.<｜end▁of▁sentence｜>"
            "<｜User｜>Bye<｜Assistant｜>",
        ),
        (
            [*CHATML, "<|im_sep|>"],
            "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
            "<|im_start|>assistant<|im_sep|>Hello.<|im_end|>"
            "<|im_start|>user<|im_sep|>Bye<|im_end|><|im_start|>assistant<|im_sep|>",
        ),
        (
            PHI3[:2],
            "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n"
            "<|user|>\nBye</s>\n<|assistant|>\n",
        ),
        (MISTRAL, "[INST]Be brief.\n\nHi[/INST]Hello.</s>[INST]Bye[/INST]"),
        (
            [],
            "Be brief.\n\nUser: Hi\n\nAssistant: Hello.\n\nUser: Bye\n\nAssistant:",
        ),
    ],
)
def test_the_text_itself(marks: list[str], text: str) -> None:
    assert render(marks, WITH_SYSTEM) == text


def test_one_mark_alone_tells_nothing() -> None:
    for mark in {mark for marks, _ in FALLBACKS for mark in marks}:
        assert fallback([mark]) == PLAIN


def test_every_row_is_reached() -> None:
    assert [fallback(marks) for marks, _ in FALLBACKS] == [text for _, text in FALLBACKS]


@pytest.mark.parametrize("template", [*[text for _, text in FALLBACKS], PLAIN])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_conversation_renders(template: str, conversation: str) -> None:
    """Calls and their results too, although not in a form that the model was trained with."""
    messages = CONVERSATIONS[conversation]
    text = ChatTemplate(template, BOS, EOS).render(messages)
    assert text == reference(template, messages, None, True)
    for message in messages:
        said = (message["content"] or "").split("</think>")[-1].strip()
        assert said in text


def test_deepseek_forgets_what_was_thought() -> None:
    text = render([*DEEPSEEK, "<think>"], THOUGHT)
    assert text == reference(SOURCES["deepseek_r1"], THOUGHT, None, True).removeprefix(BOS)
    assert "Hm." not in text and text.endswith("<think>\n")


def test_without_a_prompt_for_the_answer() -> None:
    for marks, _ in FALLBACKS:
        whole, open_ended = render(marks, TURNS[:2], False), render(marks, TURNS[:2])
        assert open_ended.startswith(whole)
