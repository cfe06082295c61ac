"""Texts and token ids as they are, without a chat template."""

from __future__ import annotations

from engine.errors import OctavoError
from engine.loader import LoadedModel
from engine.prompt import Prompt
from engine.tokenizer.decoder import StreamDecoder


async def raw_prompt(model: LoadedModel, prompt: str | list[int]) -> Prompt:
    """A text, behind the token that the model wants at the beginning, or ids and nothing else.
    Control tokens written out in the text are control tokens. Raises request.invalid for ids that
    the model does not have."""
    if not isinstance(prompt, str):
        return Prompt(checked(model, prompt))
    return Prompt(model.special.begun(await tokenize(model, prompt)))


async def tokenize(model: LoadedModel, text: str) -> list[int]:
    """The ids of a text, and no others: control tokens written out in it become theirs."""
    return await model.encoder.encode(text)


async def detokenize(model: LoadedModel, ids: list[int]) -> str:
    """The text of ids; control tokens have none, broken characters become U+FFFD. The space that
    SentencePiece puts before a text goes. Raises request.invalid for ids that the model does not
    have."""
    decoder = StreamDecoder(model.token_bytes, model.special.space_prefix)
    return decoder.push(checked(model, ids)) + decoder.flush()


def checked(model: LoadedModel, ids: list[int]) -> list[int]:
    """The ids, or request.invalid."""
    size = len(model.token_bytes)
    for id in ids:
        if id >= size:
            raise OctavoError("request.invalid", f"The model has {size} tokens, but none is {id}.")
    return ids
