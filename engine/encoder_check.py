"""An encoder is checked on the user's own GPU when it is first used there: the kernels that share
workgroup memory have to find the vectors that those without barriers find. Others are never taken.
What was found is remembered by adapter, kernels and encoder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from engine.checks import Notebook
from engine.errors import OctavoError
from engine.plan import Traits
from engine.shaders import fingerprint

# Tokens of the texts of the check: many that make large tiles, and one that leaves lanes without.
LENGTHS = (*(20 - i % 3 for i in range(32)), 5)
BELOW = (37, 1009)  # ids in turns: those beyond a vocabulary are all its last one
LEAST = 0.99999  # cosine of two vectors for a text
Embed = Callable[[list[list[int]]], Awaitable[Sequence[Sequence[float]]]]


async def right_traits(
    traits: Traits, encoder: str, embed: Callable[[Traits], Embed], notebook: Notebook
) -> Traits:
    """Those of kernels that are right on a GPU; ``embed`` makes what embeds by the kernels of such
    traits. Software adapters and CPUs are not checked: their kernels are those of the tests."""
    plain = replace(traits, barriers=False, subgroup=0)
    if traits.kind != "webgpu" or traits.software or traits == plain:
        return traits
    key = f"encoder {encoder} {traits.name} {traits.subgroup} {fingerprint()}"
    known = await notebook.recall(key)
    if not known:
        known = "right" if await _agree(embed(plain), embed(traits)) else "wrong"
        await notebook.remember(key, known)
    return traits if known == "right" else plain


async def _agree(plain: Embed, fast: Embed) -> bool:
    texts = [
        [(31 * i * i + 101 * j * (i + 1)) % BELOW[j % 2] for j in range(length)]
        for i, length in enumerate(LENGTHS)
    ]
    wanted = await plain(texts)
    try:
        found = await fast(texts)
    except OctavoError as error:
        if error.code != "internal":  # a kernel that the GPU refuses
            raise
        return False
    cosines = [
        sum(a * b for a, b in zip(x, y, strict=True)) for x, y in zip(found, wanted, strict=True)
    ]
    return all(cosine >= LEAST for cosine in cosines)  # what is no number is less, too
