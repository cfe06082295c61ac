"""Operations: each knows its shapes, its kernels and its NumPy reference."""

from engine.ops.attention import Reach, attention
from engine.ops.choose import choose, logprobs
from engine.ops.embed import embed, last_token
from engine.ops.kv_layout import KVLayout
from engine.ops.linear import gated_linear, linear
from engine.ops.norm import head_norm, rmsnorm
from engine.ops.sample import sample
from engine.ops.shift import shift

__all__ = [
    "KVLayout",
    "Reach",
    "attention",
    "choose",
    "embed",
    "gated_linear",
    "head_norm",
    "last_token",
    "linear",
    "logprobs",
    "rmsnorm",
    "sample",
    "shift",
]
