"""Token embedding, and picking the last token's row."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor, Weight
from engine.shaders import Shader, Slot
from engine.weights.quants import split, weight_lib

WORKGROUP = 64


def embed(b: PlanBuilder, tokens: Tensor, w: Weight, scale: float = 1.0) -> Tensor:
    """``w[tokens] * scale``: tokens (M,) u32, w (vocab, K) -> (M, K) f32."""
    y, first = b.activation("embed", b.tokens, w.shape[1]), 0
    for piece in split(w, b.traits.max_tensor_bytes):
        b.call(_embed(b, tokens, piece, first, scale, y))
        first += piece.shape[0]
    return y


def _embed(b: PlanBuilder, tokens: Tensor, w: Weight, first: int, scale: float, y: Tensor) -> Call:
    """Writes the rows of those tokens that are in w, in which ``first`` is the first."""
    rows, k = w.shape
    slots = (STEP_SLOT, Slot("tokens", "array<u32>"), *weight_slots("w", w))
    shader = Shader(
        "embed",
        (*slots, Slot("y", "array<vec4<f32>>", "read_write")),
        lib=("step", *weight_lib(w.format)),
        consts={"WORKGROUP": WORKGROUP},
        overrides={"K": k, "SCALE": scale, "ROWS": rows, "FIRST": first},
    )
    args = {"step": STEP, "tokens": tokens, "w": w, "y": y}
    grid = Grid(ceil(k // 32 / WORKGROUP), tokens=1 if b.tokens > 1 else 0)

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        ids = a["tokens"][: int(a["step"][NUM_TOKENS])]
        own = (ids >= first) & (ids < first + rows)
        a["y"][: len(ids)][own] = a["w"][ids[own] - first] * np.float32(scale)

    return Call("embed", args, ("y",), reference, shader, grid)


def last_token(b: PlanBuilder, x: Tensor, y: Tensor) -> None:
    """Put the last row of the step into y: x (M, K) f32, y (1, K) f32."""
    k = x.shape[1]
    shader = Shader(
        "last_token",
        (STEP_SLOT, Slot("x", "array<vec4<f32>>"), Slot("y", "array<vec4<f32>>", "read_write")),
        lib=("step",),
        consts={"WORKGROUP": WORKGROUP},
        overrides={"K": k},
    )
    grid = Grid(ceil(k // 4 / WORKGROUP))
    args = {"step": STEP, "x": x, "y": y}
    b.call(Call("last_token", args, ("y",), _last_token_reference, shader, grid))


def _last_token_reference(args: Mapping[str, Any]) -> None:
    args["y"][0] = args["x"][int(args["step"][NUM_TOKENS]) - 1]


def weight_slots(arg: str, w: Weight) -> tuple[Slot, ...]:
    """The read-only bindings of a weight's planes."""
    return tuple(Slot(f"{arg}_{p.suffix}", p.type) for p in w.planes)
