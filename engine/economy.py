"""How a model is loaded where the device has less memory than it would like."""

from __future__ import annotations

from dataclasses import dataclass

FLOOR_BLOCKS = 32  # of the KV budget: 512 tokens
FLOOR_CHUNK = 32  # tokens of a prefill step
SHARE = 4  # a budget that did not fit is divided by it


@dataclass
class Economy:
    """First the KV budget goes down to its floor, then the prefill chunk, which decides how large
    activations are. What a load asks for is remembered: what is at its floor is no saving."""

    _kv_share: int = 1
    _chunk_share: int = 1
    _blocks: int = 0  # of the last load
    _chunk: int = 0

    def blocks(self, budget: int) -> int:
        """KV blocks to be content with, of those that were asked for."""
        self._blocks = max(min(budget, FLOOR_BLOCKS), budget // self._kv_share)
        return self._blocks

    def chunk(self, most: int) -> int:
        """Tokens of a prefill step, of those that the device likes best."""
        self._chunk = max(min(most, FLOOR_CHUNK), most // self._chunk_share)
        return self._chunk

    def tighten(self) -> bool:
        """The last load had not the memory: ask for less; whether there is less to ask for."""
        if self._blocks > FLOOR_BLOCKS:
            self._kv_share *= SHARE
            return True
        if self._chunk > FLOOR_CHUNK:
            self._chunk_share *= SHARE
            return True
        return False
