"""What the KV cache holds, as it crosses to the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from engine.kv.block_pool import BlockPool
from engine.ops.kv_layout import KV_BLOCK


def describe_pool(
    pool: BlockPool,
    sequences: Sequence[tuple[Sequence[int], int]],
    block_bytes: int,
    context_blocks: int,
    precision: str,
) -> dict[str, Any]:
    """Blocks of a ``precision``, tokens and bytes. ``sequences`` are those under way, each its
    blocks and how many of its tokens are computed; a block takes ``block_bytes`` in all layers;
    ``context_blocks`` would hold the longest sequence.

    ``preallocated_bytes`` is what a cache would take that sets a whole context aside for each
    conversation held: for each sequence under way that has blocks, and for each cached one.
    """
    held = pool.tokens_held(sequences)
    conversations = pool.num_ends + sum(bool(blocks) for blocks, _ in sequences)
    return {
        "precision": precision,
        "block_size": KV_BLOCK,
        "num_blocks": pool.num_blocks,
        "budget_blocks": pool.budget,
        "free_blocks": pool.num_free,
        "used_blocks": pool.num_used,
        "shared_blocks": pool.num_shared,
        "cached_blocks": pool.num_cached,
        "map": runs(pool.states),
        "hit_rate": pool.tokens_found / max(1, pool.tokens_asked),
        "tokens": held,
        "utilization": held / max(1, (pool.num_used + pool.num_cached) * KV_BLOCK),
        "conversations": conversations,
        "bytes": pool.num_blocks * block_bytes,
        "preallocated_bytes": conversations * context_blocks * block_bytes,
    }


def runs(letters: str) -> str:
    """Each letter with how often it comes in a row: ``fffco`` -> ``f3c1o1``."""
    return "".join(f"{letter}{len(list(same))}" for letter, same in groupby(letters))
