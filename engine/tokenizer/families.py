"""Kinds of byte-level BPE (``tokenizer.ggml.pre``): how a text is cut before tokens are joined.

The patterns are facts that the model families publish in their tokenizer files; the names, and
whether a kind begins a text with its first token, are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import OctavoError, shown

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_PATTERN = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # as ByteLevel's
)
# OpenAI's cl100k, as Llama 3 writes it.
_CL100K = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2_PATTERN = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
# Marks go with letters.
_QWEN35_PATTERN = _QWEN2_PATTERN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{counts}" for counts in (f"*{_LOWER}+", f"+{_LOWER}*")]
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
# OpenAI's o200k, and what Mistral made of it.
_O200K = "|".join([*(f"{word}{_ENDINGS}?" for word in _WORDS), r"\p{N}{1,3}", _REST])
_TEKKEN_PATTERN = "|".join([*_WORDS, r"\p{N}", _REST])
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)
_DEEPSEEK_CJK = "[\u0800-\u9fa5\uac00-\ud7ff]+"
# Letters of scripts with two cases, as of the Unicode version that DeepSeek LLM was trained with.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


@dataclass(frozen=True, slots=True)
class Family:
    """What a kind stands for: steps and normalizer of a ``tokenizer.json``; whether a whole token
    needs no merges; whether a text begins with the first token if the metadata does not say."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def byte_level(use_regex: bool) -> dict[str, Any]:
    """The step into the byte alphabet; ``use_regex`` splits by GPT-2's pattern before it."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def family_of(metadata: Mapping[str, Any]) -> Family:
    """The kind that the metadata names; raises tokenizer.unsupported for an unknown one."""
    kind = metadata.get("tokenizer.ggml.pre", "default")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise OctavoError(
            "tokenizer.unsupported",
            f"The pre-tokenizer {shown(kind)} is not supported.",
            "Known ones: " + ", ".join(FAMILIES) + ".",
        )
    return family


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _splits(*patterns: str) -> tuple[dict[str, Any], ...]:
    return (*map(_split, patterns), byte_level(False))


_NFC = {"type": "NFC"}
_DIGITS = {"type": "Digits", "individual_digits": True}
_DIGITS_APART = (_DIGITS, byte_level(True))
_GPT2 = Family((byte_level(True),))
_LLAMA3 = Family(_splits(_CL100K), ignore_merges=True, add_bos=True)
_QWEN2 = _splits(_QWEN2_PATTERN)
_CODER = (*map(_split, (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK)), _DIGITS)
_LLM = (
    *map(
        _split,
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _DEEPSEEK_CJK,
        ),
    ),
    _DIGITS,
)
_KINDS = {
    "gpt-2 phi-2 mpt jais exaone4 trillion granite-docling mellum gigachat": _GPT2,
    "olmo": Family(_GPT2.steps, _NFC),
    # Of files that name none: llama.cpp's guess.
    "default": Family(
        _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]")
    ),
    "smollm starcoder refact minerva-7b": Family(_DIGITS_APART),
    "command-r": Family(_DIGITS_APART, _NFC),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": _LLAMA3,
    "dbrx smaug-bpe glm4 chatglm-bpe": Family(_LLAMA3.steps),
    "qwen2 stablelm2": Family(_QWEN2, _NFC),
    "megrez hunyuan solar-open": Family(_QWEN2),
    "deepseek-r1-qwen": Family(_QWEN2, add_bos=True),
    "qwen35": Family(_splits(_QWEN35_PATTERN), _NFC),
    "gpt-4o llama4 kanana2": Family(_splits(_O200K)),
    "tekken": Family(_splits(_TEKKEN_PATTERN), ignore_merges=True, add_bos=True),
    "deepseek-coder": Family((*_CODER, byte_level(False))),
    "deepseek-llm": Family((*_LLM, byte_level(False))),
    "deepseek-v3 hunyuan-dense joyai-llm": Family(_splits(*_DEEPSEEK_V3)),
}
FAMILIES = {name: family for names, family in _KINDS.items() for name in names.split()}
