"""A pool of physical KV blocks, which remembers what is in them.

logical tokens   [0 .. 15] [16 .. 31] [32 .. 40]
block table         7          2          5          physical blocks, in any order

A block is used by one sequence or several, or cached (used by none, but what it holds can be found
by its tokens and all before them), or free. When no block is free, the pool should grow, up to its
budget; after that the cached block that was used longest ago is taken.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.ops.kv_layout import KV_BLOCK

_ROOT = b""  # key of what comes before the first block


def _key(before: bytes, tokens: Sequence[int]) -> bytes:
    """Stands for a full block's tokens and all that come before them."""
    return hashlib.blake2b(before + array("I", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Physical blocks 0 .. num_blocks - 1; they may become ``budget``, None means no more."""

    def __init__(self, num_blocks: int, budget: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.budget = max(num_blocks, budget or 0)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._uses: dict[int, int] = {}  # sequences that use a block
        self._cached: OrderedDict[int, None] = OrderedDict()  # used longest ago first
        # What blocks hold: full ones by key, incomplete ones by the key of what comes before.
        self._full: dict[bytes, int] = {}
        self._tails: dict[bytes, dict[int, tuple[int, ...]]] = {}
        self._place: dict[int, bytes] = {}  # under which key a block is found
        self._before: dict[int, bytes] = {}  # and the key of what comes before it
        self.tokens_asked = 0
        self.tokens_found = 0

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody uses now, but whose contents can be found."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks of sequences under way."""
        return len(self._uses)

    @property
    def num_shared(self) -> int:
        """Of those, blocks that several sequences use."""
        return sum(count > 1 for count in self._uses.values())

    @property
    def states(self) -> str:
        """What each block is, a letter each: ``f``ree, ``c``ached, ``o``wned by one sequence, or
        ``s``hared by several."""
        states = bytearray(b"f" * self.num_blocks)
        for block in self._cached:
            states[block] = ord("c")
        for block, count in self._uses.items():
            states[block] = ord("s" if count > 1 else "o")
        return states.decode()

    @property
    def num_ends(self) -> int:
        """Cached sequences: cached blocks that no other known block continues. Sequences that
        begin alike count each, one that a sequence under way goes on with does not count."""
        continued = set(self._before.values())
        return sum(
            self._tail(block) is not None or self._place[block] not in continued
            for block in self._cached
        )

    def _tail(self, block: int) -> tuple[int, ...] | None:
        """Tokens of an incomplete block that can be found; None of a full one."""
        return self._tails.get(self._place[block], {}).get(block)

    def tokens_held(self, sequences: Iterable[tuple[Sequence[int], int]]) -> int:
        """Tokens whose K and V are in cached blocks or in those of ``sequences`` under way: each
        its blocks, and how many of its tokens are computed. What several share counts once."""
        held = {b: len(self._tail(b) or range(KV_BLOCK)) for b in self._cached}
        for blocks, count in sequences:
            for i, block in enumerate(blocks):
                computed = min(KV_BLOCK, max(0, count - i * KV_BLOCK))
                held[block] = max(held.get(block, 0), computed)
        return sum(held.values())

    def wanted(self, count: int) -> int:
        """How many blocks there should be before ``count`` are allocated, so that no cached one is
        lost: as many as there are if enough are free, else twice as many, within the budget."""
        missing = count - len(self._free)
        if missing <= 0:
            return self.num_blocks
        return min(self.budget, max(2 * self.num_blocks, self.num_blocks + missing))

    def grow(self, num_blocks: int) -> None:
        """There are ``num_blocks`` blocks now; the new ones are free, and go after those that
        were."""
        self._free[:0] = range(num_blocks - 1, self.num_blocks - 1, -1)
        self.num_blocks = num_blocks

    def find(self, ids: Sequence[int]) -> tuple[list[int], int]:
        """Blocks that hold the longest known beginning of ``ids``, used once more from now on, and
        the number of tokens they hold: always less than all, as the last one's logits are needed.

        A block that the sequence will write to is its own: nobody else finds it any longer.
        """
        blocks: list[int] = []
        before = _ROOT
        for start in range(0, len(ids) - KV_BLOCK + 1, KV_BLOCK):
            key = _key(before, ids[start : start + KV_BLOCK])
            if key not in self._full:
                break
            blocks.append(self._full[key])
            before = key
        for block in blocks:
            self._use(block)
        count = len(blocks) * KV_BLOCK
        if count == len(ids) and blocks:
            if self._uses[blocks[-1]] == 1:
                self._hide(blocks[-1])
                count -= 1
            else:  # what others read is not written to
                self.release([blocks.pop()], ())
                count -= KV_BLOCK
        else:
            tail, known = self._longest_tail(before, ids[count : len(ids) - 1])
            if tail is not None:
                self._use(tail)
                self._hide(tail)
                blocks.append(tail)
                count += known
        self.tokens_asked += len(ids)
        self.tokens_found += count
        return blocks, count

    def _longest_tail(self, before: bytes, ids: Sequence[int]) -> tuple[int | None, int]:
        """The incomplete block that begins with most of ``ids``, and how many these are."""
        best, most = None, 0
        for block, tokens in self._tails.get(before, {}).items():
            same = 0
            for old, new in zip(tokens, ids, strict=False):
                if old != new:
                    break
                same += 1
            if same > most:
                best, most = block, same
        return best, most

    def _use(self, block: int) -> None:
        self._uses[block] = self._uses.get(block, 0) + 1
        self._cached.pop(block, None)

    def _hide(self, block: int) -> None:
        """What the block holds can be found no longer."""
        place = self._place.pop(block, None)
        if place is None:
            return
        del self._before[block]
        if self._full.get(place) == block:
            del self._full[place]
            return
        tails = self._tails[place]
        del tails[block]
        if not tails:
            del self._tails[place]

    def share(self, blocks: Sequence[int]) -> None:
        """Another sequence uses ``blocks``, which are in use already."""
        for block in blocks:
            self._uses[block] += 1

    def count_shared(self, blocks: Sequence[int]) -> int:
        """How many of a sequence's blocks others use, too."""
        return sum(self._uses[block] > 1 for block in blocks)

    def own(self, blocks: Sequence[int]) -> list[int] | None:
        """For blocks of a sequence that is going to change what they hold: those that nobody else
        uses, no longer found by anybody; in the place of others new ones, into which the contents
        are to be copied. None, and nothing is changed, if there is no room for them."""
        shared = [block for block in blocks if self._uses[block] > 1]
        copies = self.allocate(len(shared))
        if copies is None:
            return None
        for block in blocks:
            if self._uses[block] > 1:
                self._uses[block] -= 1
            else:
                self._hide(block)
        copy_of = dict(zip(shared, copies, strict=True))
        return [copy_of.get(block, block) for block in blocks]

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks for one sequence, or None if so many are in use that they do not fit."""
        if count > len(self._free) + len(self._cached):
            return None
        while len(self._free) < count:
            block, _ = self._cached.popitem(last=False)
            self._hide(block)
            self._free.append(block)
        blocks = [self._free.pop() for _ in range(count)]
        self._uses.update(dict.fromkeys(blocks, 1))
        return blocks

    def release(self, blocks: Sequence[int], ids: Sequence[int]) -> None:
        """A sequence needs its blocks no longer; ``ids`` are the tokens, from the first on, whose
        K and V are in them. Releasing what is not in use is an error of the caller."""
        places: list[tuple[int, bytes, Sequence[int]]] = []
        before = _ROOT
        for i, block in enumerate(blocks):
            tokens = ids[i * KV_BLOCK : (i + 1) * KV_BLOCK]
            places.append((block, before, tokens))
            if len(tokens) == KV_BLOCK:
                before = _key(before, tokens)
        # The last first, so that it goes first: without what comes before, a block is no use.
        for block, before, tokens in reversed(places):
            self._release(block, before, tokens)

    def _release(self, block: int, before: bytes, tokens: Sequence[int]) -> None:
        if block not in self._uses:
            raise ValueError(f"KV block {block} is not in use")
        self._uses[block] -= 1
        if self._uses[block]:
            return
        del self._uses[block]
        if block not in self._place:
            self._remember(block, before, tokens)
        if block in self._place:
            self._cached[block] = None
        else:
            self._free.append(block)

    def _remember(self, block: int, before: bytes, tokens: Sequence[int]) -> None:
        if len(tokens) == KV_BLOCK:
            key = _key(before, tokens)
            if key not in self._full:
                self._full[key] = block
                self._place[block] = key
                self._before[block] = before
        elif tokens:
            self._tails.setdefault(before, {})[block] = tuple(tokens)
            self._place[block] = self._before[block] = before

    def forget(self) -> None:
        """Cached blocks become free: nothing of what they hold is found again."""
        for block in self._cached:
            self._hide(block)
        self._free += self._cached
        self._cached.clear()
        self._free.sort(reverse=True)  # the lowest go first again
