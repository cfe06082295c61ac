"""Rotary embedding: which tables a model has, read from its metadata, and their numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import OctavoError, shown
from engine.models.reading import number, positive, weight
from engine.ops.kv_layout import ROPE
from engine.plan import Weight
from engine.weights.gguf import GGUF

FREQS, SHORT, LONG = (f"rope_{kind}.weight" for kind in ("freqs", "factors_short", "factors_long"))


@dataclass(frozen=True)
class Rope:
    """How a table of cosines and sines turns ``rotary`` elements of heads of ``head_dim``.

    ``scale`` divides positions ("linear" scaling); ``magnitude`` makes rotated vectors longer.
    ``factors``, (rotary / 2,) f32, divide the frequencies of the pairs (Llama 3); in contexts of
    more than ``original`` tokens, ``long_factors`` do so instead ("longrope").
    """

    head_dim: int
    rotary: int
    base: float
    name: str = ROPE
    scale: float = 1.0
    magnitude: float = 1.0
    factors: Weight | None = None
    long_factors: Weight | None = None
    original: int = 0

    def factors_in(self, context: int) -> Weight | None:
        """The factors for a context of so many tokens, as llama.cpp chooses them: by how long it
        may become, and the same from its first token on."""
        return self.long_factors if context > self.original and self.long_factors else self.factors

    def weights(self) -> list[Weight]:
        """All weights, of whatever context."""
        return [w for w in (self.factors, self.long_factors) if w]

    def table(self, context: int, factors: Sequence[float] = ()) -> bytes:
        """cos and sin of position / scale * base^(-2i / rotary) / factor_i times magnitude, then 1
        and 0 for pairs that are not rotated, (context, head_dim / 2, 2) f32, as ggml_rope_ext has
        it. ``factors`` are the numbers in ``factors_in(context)``.

        Computed here in double precision: a shader's sin and cos may be off by 2^-11. Raises
        gguf.invalid for factors that are not positive numbers.
        """
        half = self.rotary // 2
        factors = factors or [1.0] * half
        if len(factors) != half or not all(0 < factor < math.inf for factor in factors):
            raise OctavoError("gguf.invalid", "The factors of rope frequencies should be above 0.")
        frequencies = [
            self.base ** (-i / half) / factor / self.scale for i, factor in enumerate(factors)
        ]
        rest = [1.0, 0.0] * (self.head_dim // 2 - half)
        table = array("f")
        for position in range(context):
            for frequency in frequencies:
                angle = position * frequency
                table.append(self.magnitude * math.cos(angle))
                table.append(self.magnitude * math.sin(angle))
            table.extend(rest)
        return table.tobytes()


def read_rope(gguf: GGUF, arch: str, head_dim: int) -> Rope:
    """The table that the metadata of Llama-like models describe."""
    meta = gguf.metadata
    rotary = positive(meta, f"{arch}.rope.dimension_count", head_dim)
    if rotary % 4 or rotary > head_dim:
        raise OctavoError(
            "model.architecture", f"Rope over {rotary} of {head_dim} elements is not supported."
        )

    def factors(name: str) -> Weight | None:
        return weight(gguf, name, rotary // 2) if name in gguf.tensors else None

    # One of the two alone is of no use.
    is_long = SHORT in gguf.tensors and LONG in gguf.tensors
    return Rope(
        head_dim=head_dim,
        rotary=rotary,
        base=number(meta, f"{arch}.rope.freq_base", 10000.0),
        scale=_scale(meta, arch, is_long),
        magnitude=number(meta, f"{arch}.rope.scaling.attn_factor", 1.0),
        factors=factors(SHORT if is_long else FREQS),
        long_factors=factors(LONG) if is_long else None,
        original=positive(
            meta,
            f"{arch}.rope.scaling.original_context_length",
            positive(meta, f"{arch}.context_length"),
        ),
    )


def _scale(metadata: Mapping[str, Any], arch: str, is_long: bool) -> float:
    """What positions are divided by. As in llama.cpp, a file that names no type means "linear"."""
    kind = metadata.get(f"{arch}.rope.scaling.type", "linear")
    if kind == "none" or (kind == "longrope" and is_long):
        return 1.0
    if kind != "linear":
        raise OctavoError("model.architecture", f"Rope scaling {shown(kind)} is not supported.")
    old_name = number(metadata, f"{arch}.rope.scale_linear", 1.0)
    return number(metadata, f"{arch}.rope.scaling.factor", old_name)
