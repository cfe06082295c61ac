"""RMS normalization (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from engine.ops.embed import weight_slots
from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor, Weight
from engine.shaders import Shader, Slot

HEAD_TEAM = 16  # most lanes that share a head: each takes a vec4 or two


@dataclass(frozen=True)
class Norm:
    """An RMS normalization to apply to the input of a linear layer."""

    gain: Weight
    eps: float


def rmsnorm(
    b: PlanBuilder, x: Tensor, gain: Weight, eps: float, residual: Tensor | None = None
) -> Tensor:
    """``x * gain / sqrt(mean(x^2) + eps) + residual`` by row: x (M, K), gain (K,), residual (M, K)
    -> (M, K), all f32."""
    k = x.shape[1]
    y = b.activation("norm", *x.shape)
    team, workgroup, team_sum = norm_team(b)
    shader = Shader(
        "rmsnorm",
        (
            STEP_SLOT,
            Slot("x", "array<vec4<f32>>"),
            *weight_slots("norm", gain),
            *([Slot("residual", "array<vec4<f32>>")] if residual else []),
            Slot("y", "array<vec4<f32>>", "read_write"),
        ),
        lib=("step", team_sum, "residual_add" if residual else "residual_none"),
        consts={"WORKGROUP": workgroup, "TEAM": team},
        overrides={"K": k, "EPS": eps},
    )
    args = {"step": STEP, "x": x, "norm": gain, "y": y}
    if residual:
        args["residual"] = residual
    grid = Grid(1, tokens=workgroup // team if b.tokens > 1 else 0)

    def reference(a: Mapping[str, Any]) -> None:
        n = int(a["step"][NUM_TOKENS])
        y = normalize(a["x"][:n], a["norm"], eps)
        a["y"][:n] = y + a["residual"][:n] if residual else y

    b.call(Call("rmsnorm", args, ("y",), reference, shader, grid))
    return y


def head_norm(
    b: PlanBuilder, qkv: Tensor, gain: Weight, eps: float, q_heads: int, kv_heads: int
) -> None:
    """Normalize every head of Q and K by RMS, in place: qkv (M, (q_heads + 2 kv_heads) * head_dim)
    f32; ``gain`` (2 * head_dim,) has the gains of a head of Q, then of K.

    A call of its own: attention_split has all eight buffers that WebGPU guarantees.
    """
    head_dim = gain.shape[0] // 2
    team, workgroup, team_sum = norm_team(b)
    team = min(team, HEAD_TEAM)
    shader = Shader(
        "head_norm",
        (
            Slot("qkv", "array<vec4<f32>>", "read_write"),
            *weight_slots("gain", gain),
        ),
        lib=(team_sum,),
        consts={
            "WORKGROUP": workgroup,
            "TEAM": team,
            "HEAD_DIM": head_dim,
            "Q_HEADS": q_heads,
            "KV_HEADS": kv_heads,
        },
        overrides={"EPS": eps},
    )
    heads = q_heads + kv_heads
    grid = Grid(ceil(heads / (workgroup // team)), tokens=1 if b.tokens > 1 else 0)

    def reference(a: Mapping[str, Any]) -> None:
        n = int(a["step"][NUM_TOKENS])
        rows = a["qkv"][:n].reshape(n, -1, head_dim)
        gains = a["gain"].reshape(2, head_dim)
        rows[:, :q_heads] = normalize(rows[:, :q_heads], gains[0], eps)
        rows[:, q_heads:heads] = normalize(rows[:, q_heads:heads], gains[1], eps)

    args = {"step": STEP, "qkv": qkv, "gain": gain}
    b.call(Call("head_norm", args, ("qkv",), reference, shader, grid))


def norm_team(b: PlanBuilder) -> tuple[int, int, str]:
    """Lanes that share a token, lanes of a workgroup, and the piece that adds over a team."""
    return (64, 64, "team_sum_workgroup") if b.traits.barriers else (1, 4, "team_sum_alone")


def normalize(x: Any, gain: Any, eps: float) -> Any:
    """RMS normalization of NumPy rows."""
    import numpy as np

    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * gain
