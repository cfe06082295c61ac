"""RMS normalization (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.ops.embed import weight_slots
from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor, Weight
from engine.shaders import Shader, Slot


def rmsnorm(b: PlanBuilder, x: Tensor, gain: Weight, eps: float) -> Tensor:
    """``x * gain / sqrt(mean(x^2) + eps)`` by row: x (M, K), gain (K,) -> (M, K), all f32."""
    k = x.shape[1]
    y = b.activation("norm", *x.shape)
    team, workgroup, team_sum = norm_team(b)
    shader = Shader(
        "rmsnorm",
        (
            STEP_SLOT,
            Slot("x", "array<vec4<f32>>"),
            *weight_slots("norm", gain),
            Slot("y", "array<vec4<f32>>", "read_write"),
        ),
        lib=("step", team_sum),
        consts={"WORKGROUP": workgroup, "TEAM": team},
        overrides={"K": k, "EPS": eps},
    )
    args = {"step": STEP, "x": x, "norm": gain, "y": y}
    grid = Grid(1, tokens=workgroup // team if b.tokens > 1 else 0)

    def reference(a: Mapping[str, Any]) -> None:
        n = int(a["step"][NUM_TOKENS])
        a["y"][:n] = normalize(a["x"][:n], a["norm"], eps)

    b.call(Call("rmsnorm", args, ("y",), reference, shader, grid))
    return y


def norm_team(b: PlanBuilder) -> tuple[int, int, str]:
    """Lanes that share a token, lanes of a workgroup, and the piece that adds over a team."""
    return (64, 64, "team_sum_workgroup") if b.traits.barriers else (1, 4, "team_sum_alone")


def normalize(x: Any, gain: Any, eps: float) -> Any:
    """RMS normalization of NumPy rows."""
    import numpy as np

    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * gain
