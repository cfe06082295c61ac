"""Quantization formats: how large GGUF blocks are in a file, and how they lie on the GPU.

A block of 32 weights is ``w = d * q + m``. On the GPU a matrix is split into aligned planes:

    format   quants plane                      scales plane
    q4       16 bytes a block: byte j holds    u32 a block: halves d and m
             q[j] (low) and q[j + 16] (high)
    q6       as q4, the low four bits; plane   u32 a block: two signed bytes sc, for each half
             ``high`` has two bits a weight    of the block, and half d: w = d * sc * (q - 32)
    q8       32 bytes a block, signed          half d a block, two blocks in a u32
    f32, f16, bf16: the values themselves      none
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from engine.errors import OctavoError
from engine.plan import Plane, Weight


@dataclass(frozen=True)
class Quant:
    """A GGUF tensor type that the engine runs: its block in the file and its GPU format.

    ``repack`` names the kernel ``wgsl/<repack>.wgsl`` that turns file blocks into planes;
    empty means that the bytes are copied as they are. ``lib`` are the pieces it is joined with.
    """

    name: str
    block_size: int
    block_bytes: int
    format: str
    repack: str = ""
    lib: tuple[str, ...] = ()


QUANTS: dict[str, Quant] = {
    q.name: q
    for q in (
        Quant("F32", 1, 4, "f32"),
        Quant("F16", 1, 2, "f16"),
        Quant("BF16", 1, 2, "bf16"),
        Quant("Q4_0", 32, 18, "q4", "repack_q4_0"),
        Quant("Q4_1", 32, 20, "q4", "repack_q4_1"),
        Quant("Q5_0", 32, 22, "q8", "repack_q5_0"),
        Quant("Q6_K", 256, 210, "q6", "repack_q6_k"),
        Quant("Q8_0", 32, 34, "q8", "repack_q8_0"),
        Quant("IQ4_NL", 32, 18, "q8", "repack_iq4_nl", ("iq4",)),
    )
}


def quant(name: str) -> Quant:
    """The quantization called ``name``, or OctavoError model.quantization."""
    if name not in QUANTS:
        known = ", ".join(QUANTS)
        raise OctavoError(
            "model.quantization",
            f"The quantization {name} is not supported.",
            f"Use a file quantized as one of {known}.",
        )
    return QUANTS[name]


def planes(format: str, shape: tuple[int, ...]) -> tuple[Plane, ...]:
    """The GPU buffers of a weight of ``shape`` in ``format``."""
    count = prod(shape)
    blocks = count // 32
    match format:
        case "q4":
            return (
                Plane("quants", "array<vec4<u32>>", blocks * 16),
                Plane("scales", "array<u32>", blocks * 4),
            )
        case "q6":
            return (
                Plane("quants", "array<vec4<u32>>", blocks * 16),
                Plane("high", "array<vec2<u32>>", blocks * 8),
                Plane("scales", "array<u32>", blocks * 4),
            )
        case "q8":
            return (
                Plane("quants", "array<vec4<u32>>", blocks * 32),
                Plane("scales", "array<u32>", ceil(blocks / 2) * 4),
            )
        case "f16" | "bf16":
            return (Plane("quants", "array<vec4<u32>>", ceil(count * 2 / 16) * 16),)
        case _:
            return (Plane("quants", "array<vec4<f32>>", ceil(count * 4 / 16) * 16),)


def file_bytes(weight: Weight) -> int:
    """Bytes of a weight's blocks in the file."""
    q = quant(weight.quant)
    return prod(weight.shape) // q.block_size * q.block_bytes


def make_weight(
    name: str, shape: tuple[int, ...], quant_name: str, sources: tuple[str, ...]
) -> Weight:
    """A weight of ``shape`` (N, K) or (K,) stacked from GGUF tensors that share a quantization."""
    q = quant(quant_name)
    unit = max(32, q.block_size)
    if len(shape) == 2 and shape[1] % unit:
        raise OctavoError(
            "model.quantization",
            f"{name}: row length {shape[1]} is not a multiple of {unit}, as {q.name} needs it.",
        )
    return Weight(name, shape, "f32", "weight", q.name, q.format, sources, planes(q.format, shape))
