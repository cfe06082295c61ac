"""Products of matrices that are both computed: batched, of any layout."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from engine.errors import OctavoError
from engine.ops.elementwise import contiguous
from engine.ops.layout import Layout, collapsed
from engine.ops.view import View, elements_of, new_view
from engine.plan import Call, Grid, PlanBuilder
from engine.shaders import Shader, Slot

TILE = 4  # rows and columns that a thread makes
SIDE = 8  # threads of a workgroup, in both directions
MOST_BATCHES = 65535


def product(b: PlanBuilder, x: View, w: View, scale: float = 1.0) -> View:
    """``scale * x @ w``: x (..., M, K), w (..., K, N) -> (..., M, N) f32. The axes in front are the
    same, M, N and K not zero."""
    batch, (m, k), n = x.shape[:-2], x.shape[-2:], w.shape[-1]
    y = new_view(b, "product", (*batch, m, n))
    left, right = _batched(b, x, w)
    count = y.elements // (m * n)
    if count > MOST_BATCHES:
        raise OctavoError("gpu.limits", f"A product of {count} matrices is too many at once.")
    outer = (*[1] * (2 - len(left.shape[:-2])), *left.shape[:-2])
    overrides: dict[str, int | float] = {"M": m, "N": n, "K": k, "BATCH": outer[1], "SCALE": scale}
    for name, view in (("A", left), ("B", right)):
        strides = (*[0] * (4 - len(view.layout.strides)), *view.layout.strides)
        overrides |= {f"{name}{i}": stride for i, stride in enumerate(strides)}
        overrides[f"{name}_AT"] = view.layout.offset
    shader = Shader(
        "product",
        (
            Slot("a", "array<f32>"),
            Slot("b", "array<f32>"),
            Slot("y", "array<f32>", "read_write"),
        ),
        consts={"TILE": TILE, "SIDE": SIDE},
        overrides=overrides,
    )

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        rows, columns = elements_of(a["a"], left.layout), elements_of(a["b"], right.layout)
        result = np.matmul(np.ascontiguousarray(rows), np.ascontiguousarray(columns))
        a["y"][...] = result.reshape(y.shape) * np.float32(scale)

    each = TILE * SIDE
    grid = Grid(ceil(n / each), ceil(m / each), count)
    args = {"a": left.tensor, "b": right.tensor, "y": y.tensor}
    b.call(Call("product", args, ("y",), reference, shader, grid))
    return y


def _batched(b: PlanBuilder, x: View, w: View) -> tuple[View, View]:
    """The same matrices with at most two axes in front."""
    front = [Layout(v.shape[:-2], v.layout.strides[:-2], v.layout.offset) for v in (x, w)]
    joined = collapsed(front)
    if len(joined[0].shape) > 2:
        return _batched(b, contiguous(b, x), contiguous(b, w))
    left, right = (
        view.with_layout(
            Layout(
                (*own.shape, *view.shape[-2:]),
                (*own.strides, *view.layout.strides[-2:]),
                own.offset,
            )
        )
        for own, view in zip(joined, (x, w), strict=True)
    )
    return left, right
