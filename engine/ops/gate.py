"""The gate of a gated unit, where no product has it fused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import ceil
from typing import Any, Literal

from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

Act = Literal["silu", "gelu"]  # the second by tanh
WORKGROUP = 64


def gate(b: PlanBuilder, x: Tensor, act: Act) -> Tensor:
    """``act(g) * u`` with ``g, u = split(x)``: x (M, 2F) -> (M, F) f32."""
    m, f = x.shape[0], x.shape[1] // 2
    y = b.activation("gated", m, f)
    shader = Shader(
        "gate",
        (STEP_SLOT, Slot("x", "array<f32>"), Slot("y", "array<f32>", "read_write")),
        lib=("step", f"act_{act}"),
        consts={"WORKGROUP": WORKGROUP},
        overrides={"F": f},
    )

    def reference(a: Mapping[str, Any]) -> None:
        n = int(a["step"][NUM_TOKENS])
        a["y"][:n] = gated(a["x"][:n], act)

    grid = Grid(ceil(f / WORKGROUP), tokens=1 if b.tokens > 1 else 0)
    b.call(Call("gate", {"step": STEP, "x": x, "y": y}, ("y",), reference, shader, grid))
    return y


def gated(y: Any, act: Act) -> Any:
    """SiLU, or GELU by tanh (Hendrycks and Gimpel, 2016), of one half of rows times the other."""
    import numpy as np

    gate, up = np.split(y, 2, axis=-1)
    if act == "silu":
        with np.errstate(over="ignore"):  # infinity is right there: the gate is shut
            return gate / (1 + np.exp(-gate)) * up
    root = np.float32(math.sqrt(2 / math.pi))
    return gate / 2 * (1 + np.tanh(root * (gate + np.float32(0.044715) * gate**3))) * up
