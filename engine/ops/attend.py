"""Attention over keys and values that are computed in the same plan, without a cache."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any

from engine.errors import OctavoError
from engine.ops.elementwise import contiguous
from engine.ops.layout import Layout, collapsed
from engine.ops.product import MOST_BATCHES
from engine.ops.view import View, elements_of, new_view
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

WORKGROUP = 64
WIDEST = 256  # elements of a query that a thread keeps
WIDEST_TILED = 64  # the same, where several threads share a query
PARTS = 4  # threads that share a query


def attend(
    b: PlanBuilder,
    q: View,
    k: View,
    v: View,
    mask: View | None,
    scale: float,
    guarded: bool = False,
) -> View:
    """``softmax(scale * q @ k.T + mask) @ v``: q (..., H, M, D), k (..., H, N, D),
    v (..., H, N, E), mask f32 broadcast to (..., H, M, N) -> (..., H, M, E), which lies as
    (..., M, H, E): that is what comes next. A query that sees no key has no result, or, if
    ``guarded``, zeros."""
    (*front, m, width), n, values = q.shape, k.shape[-2], v.shape[-1]
    if max(width, values) > WIDEST:
        raise OctavoError("graph.operator", f"Heads of more than {WIDEST} are not supported.")
    *outer, heads = front
    y = new_view(b, "attended", (*outer, m, heads, values))
    rank = len(front) + 2
    order = [*range(rank - 3), rank - 2, rank - 3, rank - 1]
    result = y.with_layout(y.layout.permuted(order))
    if not y.elements:
        return result
    args: dict[str, View] = {"q": q, "k": k, "v": v}
    if mask:
        args["mask"] = mask.with_layout(mask.layout.expanded((*front, m, n)))
    args["y"] = result
    batched = _batched(b, args)
    count = prod(front)
    if count > MOST_BATCHES:
        raise OctavoError("gpu.limits", f"Attention of {count} heads is too much at once.")
    sizes = batched["q"].shape[:-2]
    overrides: dict[str, int | float] = {"M": m, "N": n, "HEADS": sizes[-1], "SCALE": scale}
    overrides["GUARDED"] = int(guarded)
    for name, view in batched.items():
        overrides |= {f"{name.upper()}{i}": s for i, s in enumerate(view.layout.strides)}
        overrides[f"{name.upper()}_AT"] = view.layout.offset
    slots = tuple(
        Slot(name, "array<f32>", "read_write" if name == "y" else "read") for name in batched
    )
    tile = _tile(b, m, width, values)
    each = tile["QUERIES"] if tile else WORKGROUP
    shader = Shader(
        "attend_tile" if tile else "attend",
        slots,
        lib=("attend_sizes", "attend_mask" if mask else "attend_mask_none"),
        consts={**(tile or {"WORKGROUP": WORKGROUP}), "WIDTH": width, "VALUES": values},
        overrides=overrides,
    )

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        rows, keys, items = (elements_of(a[name], batched[name].layout) for name in "qkv")
        scores = np.matmul(rows, keys.swapaxes(-1, -2)) * np.float32(scale)
        if mask:
            scores = scores + elements_of(a["mask"], batched["mask"].layout)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
        if guarded:
            weights = np.nan_to_num(weights)
        elements_of(a["y"], batched["y"].layout)[...] = np.matmul(weights, items)

    tensors: dict[str, Tensor] = {name: view.tensor for name, view in batched.items()}
    grid = Grid(ceil(m / each), count)
    b.call(Call("attend", tensors, ("y",), reference, shader, grid))
    return result


def _tile(b: PlanBuilder, m: int, width: int, values: int) -> dict[str, int] | None:
    """What a workgroup that shares keys takes, where that can be."""
    if not b.traits.barriers or max(width, values) > WIDEST_TILED or width % 4 or values % 4:
        return None
    wide = width + values > WIDEST_TILED
    queries, keys = 16 if wide or m <= 16 else 32, 16 if wide else 32
    # Keys and values, and later the sums of half the lanes.
    held = max(keys * (width + values), PARTS // 2 * queries * values) // 4
    return {"QUERIES": queries, "PARTS": PARTS, "KEYS": keys, "HELD": held}


def _batched(b: PlanBuilder, views: Mapping[str, View]) -> dict[str, View]:
    """The same matrices with two axes in front."""
    fronts = [Layout(v.shape[:-2], v.layout.strides[:-2], v.layout.offset) for v in views.values()]
    joined = collapsed(fronts)
    missing = 2 - len(joined[0].shape)
    if missing < 0:
        rows = {name: view for name, view in views.items() if name != "y"}
        if all(view.layout.contiguous for view in rows.values()):
            reason = "Attention with more axes in front is not supported."
            raise OctavoError("graph.operator", reason)
        copies = {name: contiguous(b, view) for name, view in rows.items()}
        return _batched(b, {**copies, "y": views["y"]})
    return {
        name: view.with_layout(
            Layout(
                (*[1] * missing, *own.shape, *view.shape[-2:]),
                (*[0] * missing, *own.strides, *view.layout.strides[-2:]),
                own.offset,
            )
        )
        for (name, view), own in zip(views.items(), joined, strict=True)
    }
