"""The paged KV cache: which physical blocks belong to whom. Knows nothing of devices."""

from engine.kv.block_pool import BlockPool

__all__ = ["BlockPool"]
