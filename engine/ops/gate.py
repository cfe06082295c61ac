"""The gate of a gated unit, where no product has it fused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import ceil
from typing import Any, Literal

from engine.ops.elementwise import erf
from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

Act = Literal["silu", "gelu", "gelu_erf"]  # the second by tanh
ACTS: dict[Act, tuple[str, ...]] = {  # pieces of WGSL
    "silu": ("act_silu",),
    "gelu": ("act_gelu",),
    "gelu_erf": ("functions", "act_gelu_erf"),
}
WORKGROUP = 64


def gate(b: PlanBuilder, x: Tensor, act: Act) -> Tensor:
    """``act(g) * u`` with ``g, u = split(x)``: x (M, 2F) -> (M, F) f32."""
    m, f = x.shape[0], x.shape[1] // 2
    y = b.activation("gated", m, f)
    shader = Shader(
        "gate",
        (STEP_SLOT, Slot("x", "array<f32>"), Slot("y", "array<f32>", "read_write")),
        lib=("step", *ACTS[act]),
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
    """The activation of one half of rows times the other."""
    import numpy as np

    gate, up = np.split(y, 2, axis=-1)
    return activated(gate, act) * up


def activated(x: Any, act: Act) -> Any:
    """SiLU, or GELU (Hendrycks and Gimpel, 2016), by tanh or as it is defined."""
    import numpy as np

    if act == "silu":
        with np.errstate(over="ignore"):  # infinity is right there: the gate is shut
            return x / (1 + np.exp(-x))
    if act == "gelu_erf":
        return x / 2 * (1 + erf(x * np.float32(math.sqrt(0.5))))
    root = np.float32(math.sqrt(2 / math.pi))
    return x / 2 * (1 + np.tanh(root * (x + np.float32(0.044715) * x**3)))
