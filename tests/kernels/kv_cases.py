"""Steps of attention over a KV cache in scattered blocks, and moves of its keys."""

from __future__ import annotations

import math

import numpy as np

from engine import ops
from engine.ops.attention import Reach
from engine.ops.kv_layout import KV_BLOCK, KVLayout
from engine.ops.kv_values import Precision, write_tokens
from engine.ops.shift import pack_shift, shift_tensor
from engine.ops.spans import tensor_of
from engine.ops.state import StepRecord
from engine.plan import Tensor
from tests.kernels.cases import builder, numbers, rows, state
from tests.kernels.harness import Case

SHAPES = {
    "grouped": (6, 2, 16),
    "smollm2": (9, 3, 64),
    "single": (1, 1, 32),
    "wide": (4, 1, 128),
    "odd": (2, 1, 24),
    "phi": (2, 2, 96),
    "crowd": (40, 1, 16),
    "gemma": (4, 1, 256),
}
POOL_DTYPES = {"f16": np.float16, "q8": np.uint32}


def rope(context: int, head_dim: int, rotary: int = 0) -> np.ndarray:
    half = (rotary or head_dim) // 2
    angles = np.zeros((context, head_dim // 2))
    angles[:, :half] = np.arange(context)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def case_of(
    device: str,
    kv: KVLayout,
    position: int,
    tokens: int,
    capacity: int,
    table: np.ndarray,
    window: int = 0,
) -> tuple[Case, Tensor]:
    """A step of ``tokens`` at ``position`` over a history of random keys and values; what no token
    of it sees is not a number."""
    b = builder(device, capacity)
    width = (kv.q_heads + 2 * kv.kv_heads) * kv.head_dim
    qkv = state("qkv", capacity, width)
    y = tensor_of(b, ops.attention(b, qkv, kv, 0, Reach(window, "own")))
    history = np.random.default_rng(7)
    shape = (kv.num_blocks, kv.kv_heads, KV_BLOCK, kv.head_dim)
    pools = {}
    for which in ("k", "v"):
        logical = history.standard_normal((kv.max_blocks, *shape[1:]))
        pools[f"{which}.0"] = np.full(shape, np.nan, np.float16)
        pools[f"{which}.0"][table] = logical[: len(table)].astype(np.float16)
        # What no token was written to yet may hold anything.
        blocks = pools[f"{which}.0"]
        for t in range(position, len(table) * KV_BLOCK):
            blocks[table[t // KV_BLOCK], :, t % KV_BLOCK] = np.nan
        for t in range(max(0, position + 1 - window) if window else 0):
            blocks[table[t // KV_BLOCK], :, t % KV_BLOCK] = np.nan
        pools[f"{which}.0"] = pool_of(blocks, kv)
    full_table = np.zeros(kv.max_blocks, np.uint32)
    full_table[: len(table)] = table
    arrays = {
        "qkv": rows(numbers(position + 1, tokens, width), capacity),
        "own": rope(kv.context, kv.head_dim, kv.rotary),
        "block_table": full_table,
        **pools,
    }
    return Case(b.build(), arrays, {}, StepRecord(position, tokens)), y


def pool_of(values: np.ndarray, kv: KVLayout) -> np.ndarray:
    """What a pool holds with these values, (blocks, kv_heads, KV_BLOCK, head_dim)."""
    pool = np.zeros((len(values), *kv.pool("k", 0).shape[1:]), POOL_DTYPES[kv.precision])
    with np.errstate(invalid="ignore"):
        for i, block in enumerate(values.astype(np.float32)):
            write_tokens(pool, i, slice(None), block)
    return pool


def layout(
    shape: str, halves: bool, context: int = 400, rotary: int = 0, precision: Precision = "f16"
) -> KVLayout:
    q_heads, kv_heads, head_dim = SHAPES[shape]
    blocks = math.ceil(context / KV_BLOCK) + 3
    scale = head_dim**-0.5
    heads = (q_heads, kv_heads, head_dim)
    return KVLayout(blocks, context, *heads, scale, halves, rotary, precision)


def scattered(kv: KVLayout, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).permutation(kv.num_blocks)[: kv.max_blocks].astype(np.uint32)


PAIRS = [(5, 5), (0, 3), (6, 6), (2, 7)]


def shift_case(
    kv: KVLayout, moved: int, keys: np.ndarray, values: np.ndarray, magnitude: float = 1.0
) -> Case:
    b = builder("plain")
    ops.shift(b, kv, 0, "own")
    words = np.zeros(shift_tensor(kv).shape, np.uint32)
    given = np.frombuffer(pack_shift(moved, PAIRS), np.uint32)
    words[: len(given)] = given
    arrays = {
        "shift": words,
        "own": rope(kv.context, kv.head_dim, kv.rotary) * np.float32(magnitude),
        "k.0": keys if kv.precision == "q8" else keys.astype(np.float16),
        "v.0": values if kv.precision == "q8" else values.astype(np.float16),
    }
    return Case(b.build(), arrays, {}, StepRecord(0, 1))
