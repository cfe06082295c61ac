"""Matrices that exported language models keep in blocks of whole numbers with a scale each, in the
blocks of GGUF: the kernels and the loader know those.

    4 bits   byte j of a block has the numbers 2 j (low) and 2 j + 1 (high)
    8 bits   a number a byte

A number q is ``(q - zero) * scale``; without a zero point it is half the range. Scales, and zeros
times scales, are rounded to halves, as GGUF has them. It has no blocks of 8 bits with zero points:
such a matrix becomes halves.
"""

from __future__ import annotations

from typing import Any

from engine.graph.model import CONTRIB, OWN, Constant, Graph, Node
from engine.graph.passes.rewriting import Change, Finder, rewritten

BLOCK = 32  # elements of the blocks of Q4_0, Q4_1 and Q8_0
ROWS = 4096  # that are made into halves at a time
MATMUL, GATHER = f"{CONTRIB}.MatMulNBits", f"{CONTRIB}.GatherBlockQuantized"


def take_quantized(graph: Graph) -> Graph:
    """MatMulNBits and GatherBlockQuantized to products and embeddings with such matrices."""
    return rewritten(graph, _quantized)


def _quantized(finder: Finder, node: Node) -> Change | None:
    if node.op == MATMUL:
        return _matmul(finder, node)
    return _gather(finder, node) if node.op == GATHER else None


def _matmul(finder: Finder, node: Node) -> Change | None:
    """Inputs: x, blocks, scales, zeros, group indices (not supported), bias."""
    inputs = (*node.inputs, *[""] * (6 - len(node.inputs)))
    k, n = (node.attributes.get(name, 0) for name in ("K", "N"))
    bits, size = node.attributes.get("bits", 4), node.attributes.get("block_size", 0)
    if inputs[4] or not isinstance(k, int) or not isinstance(n, int):
        return None
    arrays = [_array(finder, name) for name in inputs[1:4]]
    matrix = _blocks(f"{node.name}.matrix", arrays, (n, k), bits, size)
    if matrix is None:
        return None
    bias = finder.constant(inputs[5]) if inputs[5] else None
    made, constants = [inputs[0], matrix.name], [matrix]
    if inputs[5]:
        if not bias or bias.array is None:
            return None
        vector = Constant(f"{inputs[5]}.vector", bias.dtype, bias.shape, array=bias.array)
        made.append(vector.name)
        constants.append(vector)
    linear = Node(node.name, f"{OWN}.Linear", tuple(made), node.outputs)
    return Change(linear, constants=constants)


def _gather(finder: Finder, node: Node) -> Change | None:
    """Inputs: blocks, indices, scales, zeros."""
    inputs = (*node.inputs, *[""] * (4 - len(node.inputs)))
    bits, size = node.attributes.get("bits", 4), node.attributes.get("block_size", 128)
    rows = _array(finder, inputs[0])
    axes = (node.attributes.get("gather_axis", 0), node.attributes.get("quantize_axis", 1))
    if rows is None or rows.ndim != 2 or axes not in ((0, 1), (0, -1)) or bits not in (4, 8):
        return None
    scales, zeros = _array(finder, inputs[2]), _array(finder, inputs[3])
    if scales is None or scales.ndim != 2 or not isinstance(size, int):
        return None
    shape = (rows.shape[0], scales.shape[1] * size)
    if bits == 4 and rows.shape == shape:
        # Tensors of numbers of 4 bits, signed or not, whose zero point is 0 if none is given.
        zeros = scales * 0 if zeros is None else zeros
        rows, zeros = (
            _paired(x.astype("i1") + 8 * (rows.dtype.kind == "i")) for x in (rows, zeros)
        )
    matrix = _blocks(f"{node.name}.matrix", [rows, scales, zeros], shape, bits, size)
    if matrix is None:
        return None
    op = "Gather" if matrix.quant == "F32" else f"{OWN}.Embed"
    embed = Node(node.name, op, (matrix.name, inputs[1]), node.outputs)
    return Change(embed, constants=[matrix])


def _array(finder: Finder, name: str) -> Any:
    constant = finder.constant(name) if name else None
    return constant.array if constant else None


def _blocks(
    name: str, arrays: list[Any], shape: tuple[int, int], bits: Any, size: Any
) -> Constant | None:
    """A matrix (N, K) in GGUF's blocks; None if it cannot be."""
    import numpy as np

    rows, scales, zeros = arrays
    n, k = shape
    known = bits in (4, 8) and isinstance(size, int) and size > 0 and size % BLOCK == 0
    if not known or k % size or rows is None or scales is None:
        return None
    if rows.size * 8 != n * k * bits or scales.size * size != n * k:
        return None
    parts = k // size
    numbers = _unpacked(rows.reshape(n, -1), bits)
    zero = np.full((n, parts), 1 << (bits - 1), np.uint8)
    if zeros is not None:
        # Zero points may be floats too, one for each block.
        if zeros.dtype != np.uint8 or zeros.size != n * ((parts * bits + 7) // 8):
            return None
        zero = _unpacked(zeros.reshape(n, -1), bits)[:, :parts]
    repeat = size // BLOCK
    scale = np.repeat(scales.reshape(n, parts).astype(np.float32), repeat, axis=1)
    zero = np.repeat(zero, repeat, axis=1)
    blocks = numbers.reshape(n, k // BLOCK, BLOCK)
    plain = bool((zero == 1 << (bits - 1)).all())
    if bits == 8 and not plain:
        return Constant(name, "f32", shape, array=_halves(blocks, scale, zero).reshape(shape))
    quant, data = _packed(blocks, scale, zero, bits, plain)
    return Constant(name, "f32", shape, quant=quant, array=data)


def _paired(rows: Any) -> Any:
    """Numbers of 4 bits, two in a byte; of an odd one out, the other is 0."""
    import numpy as np

    padded = np.pad(rows.astype(np.uint8), ((0, 0), (0, rows.shape[1] % 2)))
    return padded[:, 0::2] | padded[:, 1::2] << 4


def _unpacked(rows: Any, bits: int) -> Any:
    """The numbers of each row, from 0 on."""
    import numpy as np

    if bits == 8:
        return rows
    return np.stack([rows & 15, rows >> 4], axis=-1).reshape(len(rows), -1)


def _halves(blocks: Any, scale: Any, zero: Any) -> Any:
    """The elements themselves, some rows at a time."""
    import numpy as np

    made = np.empty(blocks.shape, np.float16)
    for first in range(0, len(blocks), ROWS):
        own = slice(first, first + ROWS)
        numbers = blocks[own].astype(np.float32) - zero[own, :, None]
        made[own] = numbers * scale[own, :, None]
    return made


def _packed(blocks: Any, scale: Any, zero: Any, bits: int, plain: bool) -> tuple[str, Any]:
    """The quantization, and the bytes of each row."""
    import numpy as np

    def halves(values: Any) -> Any:
        return values.astype(np.float16)[..., None].view(np.uint8)

    if bits == 8:
        signed = (blocks.astype(np.int16) - 128).astype(np.int8).view(np.uint8)
        pieces = [halves(scale), signed]
    else:
        nibbles = blocks[..., : BLOCK // 2] | blocks[..., BLOCK // 2 :] << 4
        pieces = [halves(scale), *([] if plain else [halves(-scale * zero)]), nibbles]
    quant = "Q8_0" if bits == 8 else "Q4_0" if plain else "Q4_1"
    return quant, np.concatenate(pieces, axis=-1).reshape(len(blocks), -1)
