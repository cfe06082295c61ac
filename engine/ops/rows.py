"""Sums and the like of rows, softmax, and normalization: kernels in which a team of lanes has a
row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from engine.ops.elementwise import contiguous, tensor_of
from engine.ops.view import View, new_view
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot


def _mean(x: Any) -> Any:
    return x.mean(axis=-1)


# The number is that in wgsl/reduce.wgsl; whole numbers are kept as such.
REDUCTIONS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "sum": (0, lambda x: x.sum(axis=-1)),
    "max": (1, lambda x: x.max(axis=-1)),
    "min": (2, lambda x: x.min(axis=-1)),
    "prod": (3, lambda x: x.prod(axis=-1)),
    "mean": (4, _mean),
}


def reduce(b: PlanBuilder, name: str, x: View, axes: Sequence[int]) -> View:
    """A reduction over ``axes``, which have elements; they are gone in the result. f32 or i32."""
    kept = [i for i in range(len(x.shape)) if i not in axes]
    last = contiguous(b, x.with_layout(x.layout.permuted([*kept, *axes])))
    shape = tuple(x.shape[i] for i in kept)
    y = new_view(b, name, shape, x.dtype)
    rows = y.elements
    width = x.elements // rows
    code, compute = REDUCTIONS[name]

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        with np.errstate(all="ignore"):
            a["y"][...] = compute(a["x"])

    args = {"x": tensor_of(b, last, rows, width), "y": tensor_of(b, y, rows)}
    overrides = {"REDUCTION": code, "INTEGER": int(x.dtype != "f32")}
    slots = (Slot("x", "array<u32>"), Slot("y", "array<u32>", "read_write"))
    _call(b, "reduce", args, slots, rows, width, overrides, reference)
    return y


def softmax(b: PlanBuilder, x: View, log: bool = False) -> View:
    """Softmax over the last axis, which has elements, or its logarithm."""
    x = contiguous(b, x)
    y = new_view(b, "softmax", x.shape)
    width = x.shape[-1]
    rows = x.elements // width

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        with np.errstate(all="ignore"):
            shifted = a["x"] - a["x"].max(axis=-1, keepdims=True)
            sums = np.exp(shifted).sum(axis=-1, keepdims=True)
            a["y"][...] = shifted - np.log(sums) if log else np.exp(shifted) / sums

    args = {"x": tensor_of(b, x, rows, width), "y": tensor_of(b, y, rows, width)}
    slots = (Slot("x", "array<f32>"), Slot("y", "array<f32>", "read_write"))
    _call(b, "softmax", args, slots, rows, width, {"LOG": int(log)}, reference)
    return y


def normalization(
    b: PlanBuilder,
    x: View,
    width: int,
    gain: View,
    bias: View | None,
    eps: float,
    centred: bool = True,
) -> View:
    """Layer normalization (Ba, Kiros and Hinton, 2016) of the last ``width`` elements, or, not
    ``centred``, by RMS: ``(x - mean) / sqrt(mean((x - mean)^2) + eps) * gain + bias``. Gain and
    bias have ``width`` elements."""
    x, gain = contiguous(b, x), contiguous(b, gain)
    y = new_view(b, "norm", x.shape)
    rows = x.elements // width
    args = {"x": tensor_of(b, x, rows, width), "gain": tensor_of(b, gain, width)}
    slots = [Slot("x", "array<f32>"), Slot("gain", "array<f32>")]
    if bias:
        args["bias"] = tensor_of(b, bias, width)
        slots.append(Slot("bias", "array<f32>"))
    args["y"] = tensor_of(b, y, rows, width)
    slots.append(Slot("y", "array<f32>", "read_write"))

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        x = a["x"]
        if centred:
            x = x - x.mean(axis=-1, keepdims=True)
        variance = (x * x).mean(axis=-1, keepdims=True)
        normal = x / np.sqrt(variance + np.float32(eps)) * a["gain"]
        a["y"][...] = normal + a["bias"] if bias else normal

    overrides = {"EPS": eps, "CENTRED": int(centred)}
    lib = ("row_bias",) if bias else ("row_bias_none",)
    _call(b, "normalization", args, slots, rows, width, overrides, reference, lib)
    return y


def _call(
    b: PlanBuilder,
    name: str,
    args: Mapping[str, Tensor],
    slots: Sequence[Slot],
    rows: int,
    width: int,
    overrides: Mapping[str, int | float],
    reference: Callable[[Mapping[str, Any]], None],
    lib: tuple[str, ...] = (),
) -> None:
    """A team of lanes a row; where barriers are ruinous, a lane."""
    team, workgroup, fold = (
        (64, 64, "team_fold_workgroup") if b.traits.barriers else (1, 4, "team_fold_alone")
    )
    shader = Shader(
        name,
        tuple(slots),
        lib=(*lib, "row", "fold", fold),
        consts={"WORKGROUP": workgroup, "TEAM": team},
        overrides={"ROWS": rows, "WIDTH": width, **overrides},
    )
    grid = Grid.rows(ceil(rows / (workgroup // team)))
    b.call(Call(name, args, ("y",), reference, shader, grid))
