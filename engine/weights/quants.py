"""Quantization formats: how large GGUF blocks are in a file, and how they lie on the GPU.

On the GPU a matrix is split into aligned planes of quants and scales. Most formats are integers
with a scale, w = d * q + m for a block of 32 or for each half of one, and join one of each:

    nibbles  16 bytes a block: byte j holds q[j] (low) and q[j + 16] (high)
    fives    low four bits as nibbles; u32 a block in the plane ``high``: bit j of byte b is that
             of element 4 j + b
    bytes    32 bytes a block, signed
    sixes    q - 32: low four bits as nibbles; u32 for each half in the plane ``high``: bits 2 j and
             2 j + 1 of byte b are those of element 4 j + b
    twos     u32 for each half, bits as in the plane ``high`` of sixes

    halves   u32 a block: halves d and m
    half     half d a block, two blocks in a u32; m is zero
    product  u32 a block: half d and, above it, a signed byte sc; w = d * sc * q
    k        16 bytes a superblock of 256: halves d and dmin, twelve bytes with six bits of sc and
             m for each block; w = d * sc * q - dmin * m. The products d * sc are exact in f32,
             but not in f16

and for each half:

    bytes    u32 a block: two signed bytes sc and, above them, half d; w = d * sc * q
    twos     two u32 a block: two bytes with sc below and m above, and halves d and dmin;
             w = d * sc * q - dmin * m
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
        Quant("Q2_K", 256, 84, "q2", "repack_q2_k"),
        Quant("Q3_K", 256, 110, "q6", "repack_q3_k"),
        Quant("Q4_0", 32, 18, "q4", "repack_q4_0"),
        Quant("Q4_1", 32, 20, "q4", "repack_q4_1"),
        Quant("Q4_K", 256, 144, "q4k", "repack_q4_k"),
        Quant("Q5_0", 32, 22, "q8", "repack_q5_0"),
        Quant("Q5_1", 32, 24, "q5", "repack_q5_1"),
        Quant("Q5_K", 256, 176, "q5k", "repack_q5_k"),
        Quant("Q6_K", 256, 210, "q6", "repack_q6_k"),
        Quant("Q8_0", 32, 34, "q8", "repack_q8_0"),
        Quant("IQ4_NL", 32, 18, "q8", "repack_iq4_nl", ("iq4",)),
        Quant("IQ4_XS", 256, 136, "iq4", "repack_iq4_xs", ("iq4",)),
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


@dataclass(frozen=True)
class Format:
    """How weights lie on the GPU: ``planes`` are (suffix, element type, bits a weight). ``pieces``
    of wgsl/lib read integers with a scale, w = d * q + m for a block of 32: ``quants_*`` the q as
    signed bytes, ``scales_*`` d and m as f32, twice if each half of a block has its own
    (``halved``). Without them it is ``weight_<name>`` that reads all, and there are no integer
    products."""

    planes: tuple[tuple[str, str, float], ...]
    pieces: tuple[str, ...] = ()
    halved: bool = False


def _integers(quants: str, scales: str) -> Format:
    return Format(
        (*_QUANTS_PLANES[quants], _SCALES_PLANE[scales]),
        (f"quants_{quants}", f"scales_{scales}"),
        scales in _HALVED,
    )


_QUANTS_PLANES = {
    "nibbles": (("quants", "vec4<u32>", 4),),
    "fives": (("quants", "vec4<u32>", 4), ("high", "u32", 1)),
    "bytes": (("quants", "vec4<u32>", 8),),
    "sixes": (("quants", "vec4<u32>", 4), ("high", "vec2<u32>", 2)),
    "twos": (("quants", "vec2<u32>", 2),),
}
_SCALES_PLANE = {
    "halves": ("scales", "u32", 1),
    "half": ("scales", "u32", 0.5),
    "product": ("scales", "u32", 1),
    "k": ("scales", "vec4<u32>", 0.5),
    "bytes": ("scales", "u32", 1),
    "twos": ("scales", "vec2<u32>", 2),
}
_HALVED = ("bytes", "twos")
FORMATS: dict[str, Format] = {
    "f32": Format((("quants", "vec4<f32>", 32),)),
    "f16": Format((("quants", "vec4<u32>", 16),)),
    "bf16": Format((("quants", "vec4<u32>", 16),)),
    "q2": _integers("twos", "twos"),
    "q4": _integers("nibbles", "halves"),
    "q4k": _integers("nibbles", "k"),
    "q5": _integers("fives", "halves"),
    "q5k": _integers("fives", "k"),
    "q6": _integers("sixes", "bytes"),
    "q8": _integers("bytes", "half"),
    "iq4": _integers("bytes", "product"),
}
PIECE = 16  # rows; pieces of a matrix have whole multiples of it, but for the last
_ELEMENT_BYTES = {"u32": 4, "vec2<u32>": 8, "vec4<u32>": 16, "vec4<f32>": 16}


def planes(format: str, shape: tuple[int, ...]) -> tuple[Plane, ...]:
    """The GPU buffers of a weight of ``shape`` in ``format``."""
    return tuple(
        Plane(suffix, f"array<{element}>", _round_up(prod(shape) * bits / 8, element))
        for suffix, element, bits in FORMATS[format].planes
    )


def _round_up(nbytes: float, element: str) -> int:
    """Bytes of as many whole elements as ``nbytes`` need."""
    return ceil(nbytes / _ELEMENT_BYTES[element]) * _ELEMENT_BYTES[element]


def weight_lib(format: str) -> tuple[str, ...]:
    """The pieces of wgsl/lib that make ``load_block``: 32 weights as f32."""
    known = FORMATS[format]
    if not known.pieces:
        return (f"weight_{format}",)
    return (*known.pieces, "weight_halved" if known.halved else "weight_integers")


def packed_lib(format: str) -> tuple[str, ...]:
    """The pieces that make ``load_packed``, 32 weights as signed bytes; none if it has no such
    form."""
    known = FORMATS[format]
    products = "products_halved" if known.halved else "products_whole"
    return (*known.pieces, "packed_integers", products) if known.pieces else ()


def pairs_lib(format: str) -> tuple[str, ...]:
    """The pieces that make ``load_packed`` and ``block_dot`` for two weights a multiplication;
    none if the weights have not four bits."""
    pieces = FORMATS[format].pieces
    return (pieces[1], "pairs_nibbles", "products_whole") if "quants_nibbles" in pieces else ()


def block_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor's blocks in the quantization ``name``."""
    q = quant(name)
    return prod(shape) // q.block_size * q.block_bytes


def make_weight(
    name: str, row: tuple[int, ...], quant_name: str, sources: Mapping[str, int]
) -> Weight:
    """A matrix (N, K), with ``row`` (K,), or a vector, with none, stacked from GGUF tensors that
    share a quantization and of which ``sources`` says the rows; OctavoError model.quantization if
    its rows are not whole blocks."""
    q = quant(quant_name)
    unit = max(32, q.block_size)
    if row and row[0] % unit:
        raise OctavoError(
            "model.quantization",
            f"{name}: row length {row[0]} is not a multiple of {unit}, as {q.name} needs it.",
        )
    shape = (sum(sources.values()), *row)
    return Weight(
        name,
        shape,
        role="weight",
        quant=q.name,
        format=q.format,
        sources=tuple(sources),
        rows=tuple(range(count) for count in sources.values()),
        planes=planes(q.format, shape),
    )


def split(w: Weight, limit: int, parts: int = 1) -> tuple[Weight, ...]:
    """A matrix (N, K) as pieces of some of its rows, none of whose planes takes more than ``limit``
    bytes; the matrix itself if it does not either, or if PIECE rows do. A piece of a matrix of
    ``parts`` that lie below each other has the same rows of each. Pieces are the same whenever they
    are asked for."""
    rows = w.shape[0] // parts
    unit = max(plane.nbytes for plane in planes(w.format, (parts * PIECE, *w.shape[1:])))
    most = limit // unit * PIECE
    if max(plane.nbytes for plane in w.planes) <= limit or not most:
        return (w,)
    each = ceil(rows / ceil(rows / most) / PIECE) * PIECE
    return tuple(_piece(w, i, each, parts) for i in range(ceil(rows / each)))


def _piece(w: Weight, index: int, each: int, parts: int) -> Weight:
    """Piece ``index`` of a matrix of ``parts`` that is divided by ``each`` rows of a part."""
    height = w.shape[0] // parts
    begin, end = index * each, min((index + 1) * each, height)
    taken = [
        (source, rows[max(part * height + begin - first, 0) : max(part * height + end - first, 0)])
        for part in range(parts)
        for source, rows, first in _places(w)
    ]
    sources, ranges = zip(*((source, rows) for source, rows in taken if rows), strict=True)
    shape = (parts * (end - begin), *w.shape[1:])
    return replace(
        w,
        name=f"{w.name}.{index}",
        shape=shape,
        sources=sources,
        rows=ranges,
        planes=planes(w.format, shape),
    )


def _places(w: Weight) -> Iterator[tuple[str, range, int]]:
    """Each source of a matrix, the rows taken of it, and where these begin."""
    first = 0
    for source, rows in zip(w.sources, w.rows, strict=True):
        yield source, rows, first
        first += len(rows)
