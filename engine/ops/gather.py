"""Elements by their numbers: gather, and its inverse."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any

from engine.ops.elementwise import tensor_of
from engine.ops.view import View, new_view
from engine.plan import Call, Grid, PlanBuilder
from engine.shaders import Shader, Slot

WORKGROUP = 64


def gather(b: PlanBuilder, x: View, indices: View, axis: int) -> View:
    """The entries of an axis that ``indices`` (i32, any shape) name; negative ones count from the
    end, and those beyond an end name the entry there."""
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    y = new_view(b, "gather", shape, x.dtype)
    outer, length, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    count = indices.elements
    shader = Shader(
        "gather",
        (
            Slot("x", "array<u32>"),
            Slot("indices", "array<i32>"),
            Slot("y", "array<u32>", "read_write"),
        ),
        consts={"WORKGROUP": WORKGROUP},
        overrides={"LENGTH": length, "INNER": inner, "INDICES": count, "COUNT": y.elements},
    )

    def reference(a: Mapping[str, Any]) -> None:
        chosen = a["indices"]
        chosen = (chosen + length * (chosen < 0)).clip(0, length - 1)
        a["y"][...] = a["x"][:, chosen]

    args = {
        "x": tensor_of(b, x, outer, length, inner),
        "indices": tensor_of(b, indices, count),
        "y": tensor_of(b, y, outer, count, inner),
    }
    b.call(Call("gather", args, ("y",), reference, shader, Grid.rows(ceil(y.elements / WORKGROUP))))
    return y


def scatter(b: PlanBuilder, y: View, places: View, updates: View, inner: int) -> None:
    """Write rows of ``inner`` elements of ``updates`` into those of y that ``places`` (i32) name.
    Of rows that go to one place any may be the last."""
    count = places.elements
    shader = Shader(
        "scatter",
        (
            Slot("indices", "array<i32>"),
            Slot("x", "array<u32>"),
            Slot("y", "array<u32>", "read_write"),
        ),
        consts={"WORKGROUP": WORKGROUP},
        overrides={"LENGTH": y.elements // inner, "INNER": inner, "COUNT": updates.elements},
    )

    def reference(a: Mapping[str, Any]) -> None:
        rows = a["y"].reshape(-1, inner)
        rows[a["indices"].clip(0, len(rows) - 1)] = a["x"]

    args = {
        "indices": tensor_of(b, places, count),
        "x": tensor_of(b, updates, count, inner),
        "y": tensor_of(b, y, y.elements),
    }
    grid = Grid.rows(ceil(updates.elements / WORKGROUP))
    b.call(Call("scatter", args, ("y",), reference, shader, grid))
