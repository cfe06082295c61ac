"""How far the KV pools may grow, and how much of that is there from the start."""

from __future__ import annotations

from math import ceil

from engine.config import LoadConfig
from engine.errors import OctavoError
from engine.ops.kv_layout import KV_BLOCK

FIRST_SHARE = 8  # the budget over this is allocated at load
FIRST_BLOCKS = 64  # at least


def budget_blocks(config: LoadConfig, context: int, block_bytes: int, most: int) -> int:
    """Blocks that the pools may grow to: what ``config`` says, or as many as ``context`` tokens
    take. A block takes ``block_bytes`` in all layers; the device allows ``most`` of them.

    Raises OctavoError request.invalid if kv_bytes are less than a block, and gpu.limits if the
    device does not allow one context.
    """
    one_context = ceil(context / KV_BLOCK)
    wanted = one_context
    if config.kv_tokens is not None:
        wanted = ceil(config.kv_tokens / KV_BLOCK)
    elif config.kv_bytes is not None:
        wanted = config.kv_bytes // block_bytes
    if not wanted:
        raise OctavoError(
            "request.invalid", f"kv_bytes should be at least {block_bytes}, the bytes of a block."
        )
    if min(wanted, one_context) > most:
        raise OctavoError(
            "gpu.limits",
            f"The KV cache of {context} tokens takes a buffer larger than this GPU allows.",
            "Choose a shorter context, or device=cpu.",
        )
    return min(wanted, most)


def first_blocks(budget: int) -> int:
    """Blocks that are allocated at load."""
    return min(budget, max(FIRST_BLOCKS, ceil(budget / FIRST_SHARE)))
