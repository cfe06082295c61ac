"""A pool of physical KV blocks, handed out one by one.

logical tokens   [0 .. 15] [16 .. 31] [32 .. 40]
block table         7          2          5          physical blocks, in any order
free list        [5, 1, 0, ...]                      the last freed is taken first
"""

from __future__ import annotations


class BlockPool:
    """Physical blocks 0 .. num_blocks - 1. A block is either free or owned by one sequence."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owned: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that can still be handed out."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks, or None if they do not fit."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        self._owned.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Take blocks back; freeing what is not owned is an error of the caller."""
        for block in reversed(blocks):
            if block not in self._owned:
                raise ValueError(f"KV block {block} is not in use")
            self._owned.remove(block)
            self._free.append(block)
