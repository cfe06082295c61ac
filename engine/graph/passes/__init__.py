"""Passes: functions graph -> graph that compute the same with fewer, larger operators."""

from collections.abc import Callable

from engine.graph.model import Graph
from engine.graph.passes.attention import fuse_attention
from engine.graph.passes.dead import drop_dead, drop_identities
from engine.graph.passes.folding import fold_known
from engine.graph.passes.gelu import fuse_gelu
from engine.graph.passes.linear import (
    fuse_activation,
    fuse_bias,
    fuse_qkv,
    fuse_residual,
    make_linear,
)
from engine.graph.passes.norm import fuse_layer_norm, fuse_rms_norm
from engine.graph.passes.quantized import take_quantized
from engine.graph.passes.swiglu import fuse_silu, fuse_swiglu

# In this order: what later ones look for is what earlier ones make.
PASSES: dict[str, Callable[[Graph], Graph]] = {
    "known values": fold_known,
    "identities": drop_identities,
    "layer normalization": fuse_layer_norm,
    "RMS normalization": fuse_rms_norm,
    "GELU": fuse_gelu,
    "SiLU": fuse_silu,
    "quantized matrices": take_quantized,
    "products with constants": make_linear,
    "biases": fuse_bias,
    "residuals": fuse_residual,
    "attention": fuse_attention,
    "SwiGLU": fuse_swiglu,
    "activations": fuse_activation,
    "Q, K and V": fuse_qkv,
    "dead nodes": drop_dead,
}
