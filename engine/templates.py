"""Chat templates for files without one, by the turn marks that the vocabulary has.

A template is handed messages as ``engine.chat`` prepares them; ``Prompts`` puts the first token.
"""

from __future__ import annotations

from collections.abc import Iterable

_TURNS = "{% for message in messages %}"
_TEXT = "(message.content or '')"
_CUT = _TEXT + ".split('</think>')[-1]"  # what was thought is no part of a history
# Leading system messages go before the first user's text.
_SYSTEM = "{% set ns = namespace(before='') %}"
_KEEP = "{% if message.role == 'system' %}{% set ns.before = ns.before ~ " + _TEXT + " ~ '\n\n' %}"
_SPEND = "{% set ns.before = '' %}"

CHATML = (
    _TURNS + "{{ '<|im_start|>' ~ message.role ~ '\n' ~ " + _TEXT + " ~ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PHI4 = (
    _TURNS + "{{ '<|im_start|>' ~ message.role ~ '<|im_sep|>' ~ " + _TEXT + " ~ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
_LLAMA3 = (
    _TURNS + "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ "
    "(" + _TEXT + " | trim) ~ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA = (
    _SYSTEM + _TURNS + _KEEP + "{% else %}{{ '<start_of_turn>' ~ "
    "('model' if message.role == 'assistant' else 'user') ~ '\n' ~ ns.before ~ "
    "(" + _TEXT + " | trim) ~ '<end_of_turn>\n' }}" + _SPEND + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_PHI3 = (
    _TURNS + "{{ '<|' ~ message.role ~ '|>\n' ~ " + _TEXT + " ~ '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_ZEPHYR = (
    _TURNS + "{{ '<|' ~ message.role ~ '|>\n' ~ " + _TEXT + " ~ eos_token ~ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def _mistral(space: str) -> str:
    """``space`` stands before a text: SentencePiece's vocabularies were trained so."""
    return (
        _SYSTEM + _TURNS + _KEEP + "{% elif message.role == 'assistant' %}"
        "{{ '" + space + "' ~ (" + _TEXT + " | trim) ~ eos_token }}"
        "{% else %}{{ '[INST]"
        + space
        + "' ~ ns.before ~ "
        + _TEXT
        + " ~ '[/INST]' }}"
        + _SPEND
        + "{% endif %}{% endfor %}"
    )


def _deepseek(opening: str) -> str:
    return (
        _TURNS + "{% if message.role == 'system' %}{{ " + _TEXT + " }}"
        "{% elif message.role == 'assistant' %}"
        "{{ '<｜Assistant｜>' ~ " + _CUT + " ~ '<｜end▁of▁sentence｜>' }}"
        "{% else %}{{ '<｜User｜>' ~ " + _TEXT + " }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>" + opening + "' }}{% endif %}"
    )


PLAIN = (
    _TURNS + "{% if message.role == 'system' %}{{ " + _TEXT + " ~ '\n\n' }}{% else %}"
    "{{ message.role | capitalize ~ ': ' ~ " + _TEXT + " ~ '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
# The first whose tokens a vocabulary has all. Fine-tuned models keep the marks of what they were
# made from, so those that are added come before those that are kept.
FALLBACKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<｜User｜>", "<｜Assistant｜>", "<think>"), _deepseek("<think>\n")),
    (("<｜User｜>", "<｜Assistant｜>"), _deepseek("")),
    (("<|im_start|>", "<|im_sep|>", "<|im_end|>"), _PHI4),
    (("<|im_start|>", "<|im_end|>"), CHATML),
    (("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), _LLAMA3),
    (("<start_of_turn>", "<end_of_turn>"), _GEMMA),
    (("<|user|>", "<|assistant|>", "<|end|>"), _PHI3),
    (("<|user|>", "<|assistant|>"), _ZEPHYR),
    (("[INST]", "[/INST]", "\u2581"), _mistral(" ")),
    (("[INST]", "[/INST]"), _mistral("")),
)


def fallback(tokens: Iterable[str]) -> str:
    """The template for a vocabulary: the marks of its family's turns, or ``PLAIN`` without any."""
    known = set(tokens)
    for marks, template in FALLBACKS:
        if known.issuperset(marks):
            return template
    return PLAIN
