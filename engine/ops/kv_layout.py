"""The shape of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from engine.ops.kv_values import Precision, row_words
from engine.plan import Tensor
from engine.shaders import Access, Slot

KV_BLOCK = 16  # tokens in a physical block
ROPE = "rope"  # the table of models that have one


@dataclass(frozen=True)
class KVLayout:
    """The shape of the paged KV cache and of the heads that use it.

    Pools are (num_blocks, kv_heads, KV_BLOCK, head_dim) f16, or with the ``precision`` q8
    (num_blocks, kv_heads, words) u32: those of all tokens' bytes, then those of their scales. A
    device may have more blocks or fewer of them than plans say (``engine.backends.base.pools_of``).
    ``block_table`` is (ceil(context / KV_BLOCK),) u32. The first ``rotary`` elements of a head are
    rotated (0: all of them), a multiple of 4; ``halves`` says that their pairs are (i, i + rotary /
    2) and not (2i, 2i + 1).
    """

    num_blocks: int
    context: int
    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    halves: bool = False
    rotary: int = 0
    precision: Precision = "f16"

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated."""
        return self.rotary or self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def max_blocks(self) -> int:
        """Blocks that one sequence can have."""
        return ceil(self.context / KV_BLOCK)

    def rope(self, name: str = ROPE) -> Tensor:
        """A table of cosines and sines, (context, head_dim / 2, 2) f32: of the pairs that are
        rotated, then 1 and 0 for those that are not."""
        return Tensor(name, (self.context, self.head_dim // 2, 2), "f32", "state")

    @property
    def block_table(self) -> Tensor:
        """Physical block of each logical block of the sequence."""
        return Tensor("block_table", (self.max_blocks,), "u32", "state")

    def pool(self, which: str, layer: int) -> Tensor:
        """The ``k`` or ``v`` pool of a layer."""
        name, shape = f"{which}.{layer}", (self.num_blocks, self.kv_heads)
        if self.precision == "f16":
            return Tensor(name, (*shape, KV_BLOCK, self.head_dim), "f16", "kv")
        words = KV_BLOCK * row_words(self.head_dim, self.precision)
        return Tensor(name, (*shape, words), "u32", "kv")

    def pool_slots(self, words: int, access: Access = "read") -> tuple[Slot, Slot]:
        """The bindings of both pools: ``words`` of halves at a time, or single words of bytes."""
        vector = self.precision == "f16" and words > 1
        type = f"array<vec{words}<u32>>" if vector else "array<u32>"
        return Slot("k_pool", type, access), Slot("v_pool", type, access)

    def pieces(self, use: str) -> tuple[str, ...]:
        """The pieces of WGSL by which a kernel reads and writes what is in the pools."""
        return (f"kv_half_{use}",) if self.precision == "f16" else ("kv_bytes", f"kv_bytes_{use}")
