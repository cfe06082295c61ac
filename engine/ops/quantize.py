"""Activations as integers, for products on integer weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil
from typing import Any

from engine.ops.embed import weight_slots
from engine.ops.norm import Norm, norm_team, normalize
from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

TERMS = {"q8": 1, "q16": 2}  # bytes an integer activation


def quantize(
    b: PlanBuilder, x: Tensor, norm: Norm | None = None, pairs: bool = False
) -> tuple[Tensor, Tensor]:
    """Activations, normalized or not, as integers per block of 32, in one byte (q8) or two (q16):
    x (M, K) f32 -> quants (M, K / 32, terms, 8) u32, four signed bytes a word, the high bytes of
    a block first, and scales (M, K / 32, 2) f32: s and s * sum(q). With ``pairs`` the quants have
    16 words a term, two values in each as wgsl/lib/pairs_nibbles.wgsl takes them."""
    m, k = x.shape
    terms = TERMS[b.traits.activations]
    quants = b.activation("quants", m, k // 32, terms, 16 if pairs else 8, dtype="u32")
    scales = b.activation("scales", m, k // 32, 2)
    args: dict[str, Tensor] = {"step": STEP, "x": x, "y_quants": quants, "y_scales": scales}
    slots = [STEP_SLOT, Slot("x", "array<vec4<f32>>")]
    lib: tuple[str, ...] = ("step", "term_pairs" if pairs else "term_bytes", "quantize_block")
    consts, overrides = {"WORKGROUP": 16, "TERMS": terms}, {"K": k}
    grid = Grid(ceil(k // 32 / 16), tokens=1 if b.tokens > 1 else 0)
    if norm:
        args["norm"] = norm.gain
        slots += weight_slots("norm", norm.gain)
        team, workgroup, team_sum = norm_team(b)
        lib = (*lib, team_sum)
        consts |= {"WORKGROUP": workgroup, "TEAM": team}
        grid = Grid(1, tokens=workgroup // team if b.tokens > 1 else 0)
    shader = Shader(
        "norm_quantize" if norm else "quantize",
        (
            *slots,
            Slot("y_quants", "array<vec4<u32>>", "read_write"),
            Slot("y_scales", "array<vec2<f32>>", "read_write"),
        ),
        lib=lib,
        consts=consts,
        overrides={**overrides, "EPS": norm.eps} if norm else overrides,
    )
    reference = partial(_quantize_reference, norm.eps if norm else 0.0)
    writes, value = ("y_quants", "y_scales"), partial(dequantized, name="y")
    b.call(Call("quantize", args, writes, reference, shader, grid, value=value))
    return quants, scales


def _quantize_reference(eps: float, args: Mapping[str, Any]) -> None:
    import numpy as np

    n = min(int(args["step"][NUM_TOKENS]), len(args["x"]))
    values = args["x"][:n]
    if "norm" in args:
        values = normalize(values, args["norm"], eps)
    terms, words = args["y_quants"].shape[2:]
    largest = np.float32(127 if terms == 1 else 127 * 128)
    x = values.reshape(n, -1, 32)
    peak = np.abs(x).max(axis=-1)
    inverse = np.where(peak > 0, largest / np.maximum(peak, np.float32(1e-38)), 0)
    q = np.rint(x * inverse[..., None]).astype(np.int32)
    high = np.rint(q / 128).astype(np.int32)
    parts = [q] if terms == 1 else [high, q - 128 * high]
    values = np.stack(parts, axis=2)
    args["y_quants"][:n] = _crossed(values) if words == 16 else _bytes(values)
    args["y_scales"][:n, :, 0] = peak / largest
    args["y_scales"][:n, :, 1] = peak / largest * q.sum(axis=-1)


def _bytes(values: Any) -> Any:
    """Four signed bytes a word: (..., 32) -> (..., 8) u32."""
    import numpy as np

    return values.astype(np.int8).view(np.uint32)


# Elements whose weights lie in the lower and the upper half of a word (lib/pairs_nibbles.wgsl).
LOWER = [4 * c + 16 * high + odd for c in range(4) for high in (0, 1) for odd in (0, 1)]


def _crossed(values: Any) -> Any:
    """Two values a word, that of the upper weight below: (..., 32) -> (..., 16) u32."""
    import numpy as np

    lower, upper = values[..., LOWER], values[..., np.array(LOWER) + 2]
    return (upper + (lower << 16)).astype(np.uint32)


def _uncrossed(words: Any) -> Any:
    """The inverse of ``_crossed``."""
    import numpy as np

    below = (words & 0xFFFF).astype(np.uint16).view(np.int16).astype(np.int32)
    values = np.empty((*words.shape[:-1], 32), np.int32)
    values[..., np.array(LOWER) + 2] = below
    values[..., LOWER] = (words.astype(np.int32) - below) >> 16
    return values


def dequantized(a: Mapping[str, Any], n: int | None = None, name: str = "x") -> Any:
    """What integers mean, of the first ``n`` rows: (n, K) f32."""
    import numpy as np

    words = a[f"{name}_quants"][:n]
    pairs = words.shape[3] == 16
    parts = _uncrossed(words) if pairs else words.view(np.int8).astype(np.int32)
    q = parts[:, :, 0] if parts.shape[2] == 1 else parts[:, :, 0] * 128 + parts[:, :, 1]
    return (q * a[f"{name}_scales"][:n, :, :1]).reshape(len(words), -1).astype(np.float32)
