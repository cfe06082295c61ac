"""Moving keys and values to earlier positions, after tokens before them were dropped."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from engine.ops.attention import rotate, rotation
from engine.ops.kv_layout import KV_BLOCK, ROPE, KVLayout
from engine.ops.kv_values import read_blocks, row_words, write_tokens
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

WORKGROUP = 64


def shift_tensor(kv: KVLayout) -> Tensor:
    """What ``shift`` is to do: ``pack_shift`` for at most all blocks of a sequence."""
    return Tensor("shift", (2 + 2 * kv.max_blocks,), "u32", "state")


def pack_shift(moved: int, pairs: Sequence[tuple[int, int]]) -> bytes:
    """``moved``: by how many tokens; ``pairs``: from which block to which, maybe the same."""
    return array("I", [moved, len(pairs), *(block for pair in pairs for block in pair)]).tobytes()


def shift(b: PlanBuilder, kv: KVLayout, layer: int, rope: str = ROPE) -> None:
    """Rotate the keys of blocks back by as many positions as their tokens move (RoPE is a
    rotation, so that this equals having rotated by the new position), and copy the values. Where
    the layer's table has another length than 1, keys keep theirs. Keys of q8 are rounded anew."""
    shader = Shader(
        "kv_shift",
        (
            Slot("shift", "array<u32>"),
            Slot("rope", "array<vec4<f32>>"),
            *kv.pool_slots(1, "read_write"),
        ),
        lib=("rope", *kv.pieces("move")),
        consts={
            "WORKGROUP": WORKGROUP,
            "HEAD_DIM": kv.head_dim,
            "KV_HEADS": kv.kv_heads,
            "KV_BLOCK": KV_BLOCK,
            "WORDS": kv.kv_heads * KV_BLOCK * row_words(kv.head_dim, kv.precision),
        },
        overrides=rotation(kv),
    )
    args = {
        "shift": shift_tensor(kv),
        "rope": kv.rope(rope),
        "k_pool": kv.pool("k", layer),
        "v_pool": kv.pool("v", layer),
    }
    threads = kv.kv_heads * KV_BLOCK * kv.head_dim // 4
    grid = Grid(ceil(threads / WORKGROUP), kv.max_blocks)

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        moved, count = (int(word) for word in a["shift"][:2])
        pairs = a["shift"][2 : 2 + 2 * count].reshape(count, 2)
        turn = a["rope"][moved]
        # The inverse of a rotation has the opposite sine.
        back = turn * (1, -1) / np.hypot(turn[:, :1], turn[:, 1:])
        for src, dst in pairs:
            (keys,) = read_blocks(a["k_pool"], [src], kv.head_dim)
            table = back[None].repeat(KV_BLOCK, axis=0)
            turned = rotate(keys.swapaxes(0, 1), table, kv).swapaxes(0, 1)
            write_tokens(a["k_pool"], dst, slice(None), turned)
            a["v_pool"][dst] = a["v_pool"][src]

    b.call(Call("kv_shift", args, ("k_pool", "v_pool"), reference, shader, grid))
