"""One sequence under way: its tokens, how many of them are in the KV cache, and its blocks."""

from __future__ import annotations

from math import ceil

from engine.errors import OctavoError
from engine.kv import BlockPool
from engine.ops.kv_layout import KV_BLOCK


class NoRoomError(OctavoError):
    """All KV blocks are in use by sequences under way."""

    def __init__(self) -> None:
        super().__init__("prompt.too_long", "The KV cache has no room for the conversation.")


class Session:
    """Tokens 0 .. num_cached - 1 have their K and V in ``blocks``; the rest must be computed.

    tokens   [ ........ cached ........ | .. to prefill .. ]
    blocks   [ 7 ][ 2 ][ 5 ]              in the order of the tokens

    Between answers a session has no blocks: what they hold stays in the pool, where the next
    prompt that begins alike finds it, be it of the same conversation or of another one.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.tokens: list[int] = []
        self.num_cached = 0
        self.blocks: list[int] = []
        self._slid_from: int | None = None  # tokens from here on were moved

    def prompt(self, ids: list[int]) -> int:
        """Take ``ids`` as all tokens so far; returns how many of them are cached already."""
        self.release()
        self.tokens = list(ids)
        self.blocks, self.num_cached = self._pool.find(ids)
        return self.num_cached

    def missing(self, num_tokens: int) -> int:
        """Blocks to add for ``num_tokens`` tokens."""
        return max(0, ceil(num_tokens / KV_BLOCK) - len(self.blocks))

    def reserve(self, num_tokens: int) -> list[int]:
        """Have blocks for ``num_tokens`` tokens; returns the blocks that were added.

        Raises NoRoomError, an OctavoError prompt.too_long, when the pool has none.
        """
        added = self._pool.allocate(self.missing(num_tokens))
        if added is None:
            raise NoRoomError
        self.blocks += added
        return added

    def append(self, ids: list[int]) -> None:
        """Sampled tokens join the sequence. All tokens before the last are cached by now."""
        self.tokens += ids
        self.num_cached = len(self.tokens) - 1

    def copies_to_slide(self, keep: int, drop: int) -> int:
        """Blocks that ``slide`` takes for copies of what others use."""
        return self._pool.count_shared(self.blocks[keep + drop :])

    def slide(self, keep: int, drop: int) -> list[tuple[int, int]]:
        """Let go of ``drop`` blocks after the first ``keep``; the tokens behind them move to
        earlier positions. Returns from which block to which K and V have to be moved.

        What was computed with tokens that are gone is found by nobody else afterwards. Raises
        NoRoomError when blocks in use by others would have to be copied and there is no room.
        """
        moved = self.blocks[keep + drop :]
        own = self._pool.own(moved)
        if own is None:
            raise NoRoomError
        start, end = keep * KV_BLOCK, (keep + drop) * KV_BLOCK
        self._pool.share(self.blocks[:keep])
        self._pool.release(self.blocks[: keep + drop], self._findable[:end])
        self.blocks = self.blocks[:keep] + own
        del self.tokens[start:end]
        self.num_cached -= end - start
        self._slid_from = start
        return list(zip(moved, own, strict=True))

    @property
    def _findable(self) -> list[int]:
        """Tokens whose K and V are what any sequence with the same beginning would compute."""
        return self.tokens[: self.num_cached][: self._slid_from]

    def release(self) -> None:
        """The sequence has ended, for now: its blocks go back with what is in them."""
        self._pool.release(self.blocks, self._findable)
        self.tokens, self.blocks, self.num_cached, self._slid_from = [], [], 0, None
