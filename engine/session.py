"""One conversation: its tokens, how many of them are in the KV cache, and its blocks."""

from __future__ import annotations

from math import ceil

from engine.errors import OctavoError
from engine.kv import BlockPool
from engine.ops.attention import KV_BLOCK


class Session:
    """Tokens 0 .. num_cached - 1 have their K and V in ``blocks``; the rest must be computed.

    tokens   [ ........ cached ........ | .. to prefill .. ]
    blocks   [ 7 ][ 2 ][ 5 ]              in the order of the tokens
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.tokens: list[int] = []
        self.num_cached = 0
        self.blocks: list[int] = []

    def prompt(self, ids: list[int]) -> int:
        """Take ``ids`` as the whole conversation; returns how many of them are cached already.

        The common beginning is kept. The last token is always computed again, as its logits
        are needed.
        """
        shared = 0
        for old, new in zip(self.tokens[: self.num_cached], ids, strict=False):
            if old != new:
                break
            shared += 1
        self.tokens = list(ids)
        self.num_cached = min(shared, len(ids) - 1)
        return self.num_cached

    def pretend(self, ids: list[int], num_cached: int) -> None:
        """Take ``ids`` with the first ``num_cached`` as if they were in the cache, whatever it
        holds: for measurements only."""
        self.tokens, self.num_cached = list(ids), num_cached

    def reserve(self, num_tokens: int) -> list[int]:
        """Own blocks for ``num_tokens`` tokens; returns the blocks that were added.

        Raises OctavoError prompt.too_long when the pool has no room.
        """
        missing = ceil(num_tokens / KV_BLOCK) - len(self.blocks)
        added = self._pool.allocate(max(0, missing))
        if added is None:
            raise OctavoError("prompt.too_long", "The KV cache has no room for the conversation.")
        self.blocks += added
        return added

    def append(self, ids: list[int]) -> None:
        """Sampled tokens join the conversation. All tokens before the last are cached by now."""
        self.tokens += ids
        self.num_cached = len(self.tokens) - 1

    def reset(self) -> None:
        """Forget everything: the blocks go back, nothing is cleared, nothing can be read again."""
        self._pool.free(self.blocks)
        self.tokens, self.blocks, self.num_cached = [], [], 0
