"""Attention that was split over the context (flash-decoding, Dao et al., 2023): its spans, and how
they are joined: by a kernel of their own, or by the product that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from engine.ops.kv_layout import KV_BLOCK, KVLayout
from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

WORKGROUP = 64


@dataclass(frozen=True)
class Spans:
    """An attention's results by span of the context (wgsl/lib/span.wgsl): sums of values (rows,
    head_dim) and of weights (rows, 2), a row being a query head of a token in a span. ``most`` is
    how many spans the context may have where a step has one token."""

    parts: Tensor
    stats: Tensor
    consts: Mapping[str, int]
    kv: KVLayout
    window: int
    most: int
    private = ("parts", "stats")  # of references, which have one span
    lib = ("step", "window", "span")

    @classmethod
    def of(
        cls, b: PlanBuilder, kv: KVLayout, tile: int, window: int, splits: int, most: int
    ) -> Spans:
        """Room for ``splits`` spans, each a multiple of ``tile`` tokens, of a step's most tokens;
        fewer tokens may have ``most``."""
        capacity = b.tokens * splits
        return cls(
            b.activation("parts", capacity * kv.q_heads, kv.head_dim),
            b.activation("stats", capacity * kv.q_heads, 2),
            {"SPLITS": most, "CAPACITY": capacity, "TILE": tile, "KV_BLOCK": KV_BLOCK},
            kv,
            window,
            min(most, ceil(kv.context / tile)),
        )

    @property
    def args(self) -> dict[str, Tensor]:
        """The tensors as arguments of a call."""
        return {"parts": self.parts, "stats": self.stats}

    def slots(self, width: int) -> tuple[Slot, Slot]:
        """The bindings that write them, ``width`` elements at a time."""
        return (
            Slot("parts", f"array<vec{width}<f32>>", "read_write"),
            Slot("stats", "array<vec2<f32>>", "read_write"),
        )

    @property
    def read_slots(self) -> tuple[Slot, ...]:
        """The bindings of a kernel that joins them (wgsl/lib/span_join.wgsl)."""
        return (
            STEP_SLOT,
            Slot("parts", "array<vec4<f32>>"),
            Slot("stats", "array<vec2<f32>>"),
        )

    @property
    def join_lib(self) -> tuple[str, ...]:
        """The pieces of WGSL of a kernel that joins them."""
        return (*self.lib, "span_join")

    @property
    def join_consts(self) -> dict[str, int]:
        """The constants of a kernel that joins them."""
        return {"HEAD_DIM": self.kv.head_dim, **self.consts}

    def put(self, a: Mapping[str, Any], attended: Any) -> None:
        """For references, one span does: the whole context, already normalized."""
        values = attended.reshape(-1, self.kv.head_dim)
        a["parts"][: len(values)] = values
        a["stats"][: len(values)] = (0.0, 1.0)

    def joined(self, a: Mapping[str, Any], n: int) -> Any:
        """For references, what ``put`` was given: (n, q_heads * head_dim)."""
        return a["parts"][: n * self.kv.q_heads].reshape(n, -1)

    def join(self, b: PlanBuilder) -> Tensor:
        """Join them: (M, q_heads * head_dim) f32."""
        heads, quads = self.kv.q_heads, self.kv.head_dim // 4
        y = b.activation("attention", b.tokens, heads * self.kv.head_dim)
        shader = Shader(
            "attention_merge",
            (*self.read_slots, Slot("y", "array<vec4<f32>>", "read_write")),
            lib=self.join_lib,
            consts={"WORKGROUP": WORKGROUP, **self.join_consts},
            overrides={"Q_HEADS": heads, "WINDOW": self.window},
        )

        def reference(a: Mapping[str, Any]) -> None:
            n = int(a["step"][NUM_TOKENS])
            a["y"][:n] = self.joined(a, n)

        args = {"step": STEP, **self.args, "y": y}
        grid = Grid(ceil(heads * quads / WORKGROUP), tokens=1 if b.tokens > 1 else 0)
        b.call(Call("attention_merge", args, ("y",), reference, shader, grid))
        return y


def tensor_of(b: PlanBuilder, x: Tensor | Spans) -> Tensor:
    """The tensor, of spans what they are joined to."""
    return x.join(b) if isinstance(x, Spans) else x
