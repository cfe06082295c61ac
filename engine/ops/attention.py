"""Rotary embedding, the KV store and causal attention over the paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from engine.ops.kv_layout import KV_BLOCK, ROPE, KVLayout
from engine.ops.kv_values import read_blocks, write_tokens
from engine.ops.spans import Spans
from engine.ops.state import NUM_TOKENS, POSITION, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor, Variant
from engine.shaders import Shader, Slot

SPLIT_WORKGROUP = 128  # lanes of attention_split
SPLIT_SHARE = 2  # of them share a token, where they can shuffle
SPLITS = 64  # most spans of the context that it makes
TILE_WORKGROUP = 128  # lanes of attention_tile
TILE_SPLITS = 4  # spans that a whole chunk of attention_tile is split into
FEW_SPLITS = 32  # most spans of few tokens


@dataclass(frozen=True)
class Reach:
    """What attention may have of its own in each layer: a token sees the last ``window`` tokens,
    itself among them (0: all before it), at positions that the table ``rope`` stands for."""

    window: int = 0
    rope: str = ROPE


EVERYTHING = Reach()
_TABLE = Slot("block_table", "array<u32>")
_ROPE = Slot("rope", "array<vec4<f32>>")


def attention(
    b: PlanBuilder, qkv: Tensor, kv: KVLayout, layer: int, reach: Reach = EVERYTHING
) -> Tensor | Spans:
    """Rotate, store K and V, attend: qkv (M, (q_heads + 2 kv_heads) * head_dim) f32 ->
    (M, q_heads * head_dim) f32, maybe in spans that the product after it joins. Token i of the
    step sits at step.position + i."""
    barriers = b.traits.barriers and b.traits.kind != "cpu"
    if b.tokens == 1 and barriers and _split_heads(b, kv):
        return _split(b, qkv, kv, layer, reach)
    q = _rope_store(b, qkv, kv, layer, reach.rope)
    if barriers and b.tokens > 1 and _tile_size(kv) and _tile_lanes(b, kv):
        return _tile(b, q, kv, layer, reach.window)
    return _rows(b, q, kv, layer, reach.window)


def _consts(kv: KVLayout, workgroup: int) -> dict[str, int]:
    return {
        "WORKGROUP": workgroup,
        "HEAD_DIM": kv.head_dim,
        "KV_HEADS": kv.kv_heads,
        "KV_BLOCK": KV_BLOCK,
    }


def rotation(kv: KVLayout) -> dict[str, int]:
    """The overrides of wgsl/lib/rope.wgsl."""
    return {"HALVES": int(kv.halves), "ROTARY": kv.rotated}


def _rope_store(b: PlanBuilder, qkv: Tensor, kv: KVLayout, layer: int, rope: str) -> Tensor:
    q = b.activation("q", qkv.shape[0], kv.q_heads * kv.head_dim)
    workgroup = 64
    shader = Shader(
        "rope_store",
        (
            STEP_SLOT,
            _TABLE,
            _ROPE,
            Slot("qkv", "array<f32>"),
            Slot("q", "array<f32>", "read_write"),
            *kv.pool_slots(1, "read_write"),
        ),
        lib=("step", "rope", "paged", *kv.pieces("store")),
        consts=_consts(kv, workgroup),
        overrides={"Q_HEADS": kv.q_heads, **rotation(kv)},
    )
    args = {
        "step": STEP,
        "block_table": kv.block_table,
        "rope": kv.rope(rope),
        "qkv": qkv,
        "q": q,
        "k_pool": kv.pool("k", layer),
        "v_pool": kv.pool("v", layer),
    }
    threads = (kv.q_heads + 2 * kv.kv_heads) * kv.head_dim // 4
    grid = Grid(ceil(threads / workgroup), tokens=1 if b.tokens > 1 else 0)

    def reference(a: Mapping[str, Any]) -> None:
        a["q"][: int(a["step"][NUM_TOKENS])] = rotate_and_store(a, kv)

    b.call(Call("rope_store", args, ("q", "k_pool", "v_pool"), reference, shader, grid))
    return q


def _attend_slots(kv: KVLayout) -> tuple[Slot, ...]:
    return (STEP_SLOT, _TABLE, Slot("q", "array<vec4<f32>>"), *kv.pool_slots(2))


def _attend_args(q: Tensor, kv: KVLayout, layer: int) -> dict[str, Tensor]:
    return {
        "step": STEP,
        "block_table": kv.block_table,
        "q": q,
        "k_pool": kv.pool("k", layer),
        "v_pool": kv.pool("v", layer),
    }


def _rows(b: PlanBuilder, q: Tensor, kv: KVLayout, layer: int, window: int) -> Tensor:
    """A thread for each query head of each token; no barriers."""
    y = b.activation("attention", *q.shape)
    workgroup = 32 if b.traits.barriers else 4
    shader = Shader(
        "attention_rows",
        (*_attend_slots(kv), Slot("y", "array<vec4<f32>>", "read_write")),
        lib=("step", "window", "paged", *kv.pieces("quad")),
        consts=_consts(kv, workgroup),
        overrides={"Q_HEADS": kv.q_heads, "SCALE": kv.scale, "WINDOW": window},
    )

    def reference(a: Mapping[str, Any]) -> None:
        n = int(a["step"][NUM_TOKENS])
        a["y"][:n] = attend(a["q"][:n], a, kv, window)

    grid = Grid(ceil(kv.q_heads / workgroup), tokens=1 if b.tokens > 1 else 0)
    args = {**_attend_args(q, kv, layer), "y": y}
    b.call(Call("attention", args, ("y",), reference, shader, grid))
    return y


def _tile_lanes(b: PlanBuilder, kv: KVLayout) -> list[int]:
    """How many lanes may share a row of attention_tile, the rule's choice first: each takes whole
    quads of elements, and all heads of a group find a row in a workgroup."""
    shared = [2, 1, 4] if b.traits.subgroup >= 4 else [1]
    quads = kv.head_dim // 4
    return [n for n in shared if quads % n == 0 and kv.group <= TILE_WORKGROUP // n]


def _tile_size(kv: KVLayout) -> int:
    """Keys of a tile: f32 keys and values in the 16 KB that every adapter has, by eights."""
    return min(64, 16384 // 8 // kv.head_dim // 8 * 8)


def _tile(b: PlanBuilder, q: Tensor, kv: KVLayout, layer: int, window: int) -> Spans:
    """Keys and values through workgroup memory, shared by the rows of a workgroup."""
    spans = Spans.of(b, kv, _tile_size(kv), window, TILE_SPLITS, FEW_SPLITS)
    subgroups = b.traits.subgroup >= 4

    def variant(lanes: int) -> Variant:
        tokens = TILE_WORKGROUP // lanes // kv.group
        grid = Grid(kv.kv_heads, z=FEW_SPLITS, tokens=tokens)
        return Variant({"LANES": lanes, "TOKENS": tokens}, grid)

    variants = {f"{n} lanes": variant(n) for n in _tile_lanes(b, kv)}
    first = next(iter(variants.values()))
    consts = {**_consts(kv, TILE_WORKGROUP), "GROUP": kv.group, **first.consts, **spans.consts}
    shader = Shader(
        "attention_tile",
        (*_attend_slots(kv), *spans.slots(4)),
        lib=(
            *(*Spans.lib, "paged", *kv.pieces("quad")),
            "lanes_sum_subgroup" if subgroups else "lanes_sum_alone",
        ),
        consts=consts,
        overrides={"Q_HEADS": kv.q_heads, "SCALE": kv.scale, "WINDOW": window},
        enable=("subgroups",) if subgroups else (),
    )

    def reference(a: Mapping[str, Any]) -> None:
        spans.put(a, attend(a["q"][: int(a["step"][NUM_TOKENS])], a, kv, window))

    args = {**_attend_args(q, kv, layer), **spans.args}
    call = Call("attention_tile", args, spans.private, reference, shader, first.grid, variants)
    b.call(replace(call, private=spans.private))
    return spans


def _split_heads(b: PlanBuilder, kv: KVLayout) -> list[int]:
    """How many query heads a workgroup of attention_split may take, the rule's choice first. More
    of them share loads of K and V, but a workgroup takes longer, and there are few: two is the
    best for a GPU with many cores. They need a lane for each pair of a head, and memory for
    queries, scores (twice), sums of values, new K and V (as f32 too, to become bytes)."""
    rule = 2 if kv.group % 2 == 0 else 1
    blocks = SPLIT_WORKGROUP // KV_BLOCK
    new = kv.head_dim if kv.precision == "f16" else 3 * kv.head_dim

    def nbytes(heads: int) -> int:
        queries, scores = heads * kv.head_dim, 2 * heads * SPLIT_WORKGROUP
        return 4 * (queries + scores + 2 * SPLIT_WORKGROUP + new + blocks)

    if kv.head_dim // 2 > SPLIT_WORKGROUP:
        return []
    heads = dict.fromkeys([rule, 1, 2, 3, 4, 6, 8])
    return [n for n in heads if kv.group % n == 0 and nbytes(n) <= b.traits.workgroup_bytes]


def _split(b: PlanBuilder, qkv: Tensor, kv: KVLayout, layer: int, reach: Reach) -> Spans:
    """One token: rotation, the store of K and V and the attention in one kernel."""
    subgroup = b.traits.subgroup
    can_share = subgroup >= SPLIT_SHARE and kv.head_dim // 8 % SPLIT_SHARE == 0
    tile = SPLIT_WORKGROUP // (SPLIT_SHARE if can_share else 1)
    spans = Spans.of(b, kv, tile, reach.window, SPLITS, SPLITS)
    team = {"TEAM": min(subgroup, 32)} if subgroup else {}

    def variant(heads: int) -> Variant:
        return Variant({"HEADS": heads, **team}, Grid(kv.kv_heads, SPLITS, kv.group // heads))

    variants = {f"{n} heads": variant(n) for n in _split_heads(b, kv)}
    first = next(iter(variants.values()))
    consts = {**_consts(kv, SPLIT_WORKGROUP), "GROUP": kv.group, **first.consts, **spans.consts}
    shader = Shader(
        "attention_split",
        (
            STEP_SLOT,
            _TABLE,
            _ROPE,
            Slot("qkv", "array<f32>"),
            *kv.pool_slots(4, "read_write"),
            *spans.slots(2),
        ),
        lib=(
            *(*Spans.lib, "rope", "paged", *kv.pieces("split")),
            f"heads_{'subgroup' if subgroup else 'workgroup'}",
        ),
        consts=consts,
        overrides={"SCALE": kv.scale, "WINDOW": reach.window, **rotation(kv)},
        enable=("subgroups",) if subgroup else (),
    )
    args = {
        "step": STEP,
        "block_table": kv.block_table,
        "rope": kv.rope(reach.rope),
        "qkv": qkv,
        "k_pool": kv.pool("k", layer),
        "v_pool": kv.pool("v", layer),
        **spans.args,
    }

    def reference(a: Mapping[str, Any]) -> None:
        spans.put(a, attend(rotate_and_store(a, kv), a, kv, reach.window))

    writes = ("k_pool", "v_pool", *spans.private)
    call = Call("attention_split", args, writes, reference, shader, first.grid, variants)
    b.call(replace(call, private=spans.private))
    return spans


def rotate_and_store(a: Mapping[str, Any], kv: KVLayout) -> Any:
    """NumPy: rotate Q and K, write K and V to the pools; returns Q (n, q_heads * head_dim)."""
    n, start = int(a["step"][NUM_TOKENS]), int(a["step"][POSITION])
    heads = a["qkv"][:n].reshape(n, -1, kv.head_dim)
    rotated = rotate(heads[:, : kv.q_heads + kv.kv_heads], a["rope"][start : start + n], kv)
    for i in range(n):
        block = int(a["block_table"][(start + i) // KV_BLOCK])
        at = (start + i) % KV_BLOCK
        write_tokens(a["k_pool"], block, at, rotated[i, kv.q_heads :])
        write_tokens(a["v_pool"], block, at, heads[i, kv.q_heads + kv.kv_heads :])
    return rotated[:, : kv.q_heads].reshape(n, -1)


def rotate(x: Any, table: Any, kv: KVLayout) -> Any:
    """RoPE (Su et al., 2021) in NumPy: x (n, heads, head_dim), table (n, head_dim / 2, 2)."""
    import numpy as np

    n, heads, _ = x.shape
    cos, sin = table[:, None, : kv.rotated // 2, 0], table[:, None, : kv.rotated // 2, 1]
    turned, rest = x[..., : kv.rotated], x[..., kv.rotated :]
    pairs = (
        turned.reshape(n, heads, 2, -1).swapaxes(2, 3)
        if kv.halves
        else turned.reshape(n, heads, -1, 2)
    )
    low, high = pairs[..., 0], pairs[..., 1]
    turned = np.stack([low * cos - high * sin, low * sin + high * cos], axis=-1)
    turned = (turned.swapaxes(2, 3) if kv.halves else turned).reshape(n, heads, -1)
    return np.concatenate([turned, rest], axis=-1)


def attend(q: Any, a: Mapping[str, Any], kv: KVLayout, window: int = 0) -> Any:
    """Causal softmax attention in NumPy over the block table: q (n, q_heads * head_dim)."""
    import numpy as np

    n, start = int(a["step"][NUM_TOKENS]), int(a["step"][POSITION])
    first = max(0, start + 1 - window) if window else 0  # of the tokens that a row sees
    blocks = a["block_table"][first // KV_BLOCK : ceil((start + n) / KV_BLOCK)]
    at = np.arange(first, start + n)
    length, unseen = len(at), first % KV_BLOCK

    def gather(pool: Any) -> Any:
        values = read_blocks(pool, blocks, kv.head_dim)
        by_head = values.swapaxes(0, 1).reshape(kv.kv_heads, -1, kv.head_dim)
        return by_head[:, unseen : unseen + length]

    keys, values = gather(a["k_pool"]), gather(a["v_pool"])
    heads = q.reshape(n, kv.kv_heads, kv.group, kv.head_dim).transpose(1, 2, 0, 3)
    flat = heads.reshape(kv.kv_heads, kv.group * n, kv.head_dim)
    scores = np.einsum("hmd,htd->hmt", flat, keys) * np.float32(kv.scale)
    scores = scores.reshape(kv.kv_heads, kv.group, n, length)
    own = start + np.arange(n)[:, None]
    hidden = (at > own) | (at <= own - window if window else False)
    scores[:, :, hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    flat = weights.reshape(kv.kv_heads, kv.group * n, length)
    mixed = np.einsum("hmt,htd->hmd", flat, values)
    out = mixed.reshape(kv.kv_heads, kv.group, n, kv.head_dim).transpose(2, 0, 1, 3)
    return out.reshape(n, -1)
