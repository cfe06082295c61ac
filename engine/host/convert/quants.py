"""Which type a tensor gets, and the packing of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import LlamaFileType

from engine.host.convert import kquants
from engine.host.convert.model import EMBEDDING, OUTPUT, Bytes, Tensor
from engine.host.errors import HostError

CHUNK = 1 << 18  # weights that are in memory at a time

# What --quant names -> the type of matrices, that of embedding and output, and the file type.
QUANTS: dict[str, tuple[Kind, Kind, LlamaFileType]] = {
    "f32": (Kind.F32, Kind.F32, LlamaFileType.ALL_F32),
    "f16": (Kind.F16, Kind.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (Kind.BF16, Kind.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (Kind.Q8_0, Kind.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Kind.Q4_0, Kind.Q8_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (Kind.Q4_1, Kind.Q8_0, LlamaFileType.MOSTLY_Q4_1),
    "q5_0": (Kind.Q5_0, Kind.Q8_0, LlamaFileType.MOSTLY_Q5_0),
    "q5_1": (Kind.Q5_1, Kind.Q8_0, LlamaFileType.MOSTLY_Q5_1),
    "q4_k": (Kind.Q4_K, Kind.Q6_K, LlamaFileType.MOSTLY_Q4_K_S),
    "q5_k": (Kind.Q5_K, Kind.Q6_K, LlamaFileType.MOSTLY_Q5_K_S),
    "q6_k": (Kind.Q6_K, Kind.Q6_K, LlamaFileType.MOSTLY_Q6_K),
}
# For rows that are no multiple of a block, as llama.cpp has it.
FALLBACKS = {Kind.Q4_K: Kind.Q5_0, Kind.Q5_K: Kind.Q5_1, Kind.Q6_K: Kind.Q8_0}


def target(tensor: Tensor, quant: str | None) -> Kind:
    """The type to write: matrices are quantized, vectors stay as exact as they are."""
    if quant is None or len(tensor.shape) < 2:
        return tensor.stored
    matrix, precise, _ = QUANTS[quant]
    kind = precise if tensor.name in (EMBEDDING, OUTPUT) else matrix
    while tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = FALLBACKS.get(kind, Kind.F16)
    return kind


def file_type(tensors: Iterable[Tensor]) -> LlamaFileType:
    """What `general.file_type` calls matrices of the types they are stored in."""
    kinds = Counter(tensor.stored for tensor in tensors if len(tensor.shape) > 1)
    names = {matrix: name for matrix, _, name in QUANTS.values()}
    return names[kinds.most_common(1)[0][0]]


def nbytes(tensor: Tensor, kind: Kind) -> int:
    """Bytes that `tensor` takes as `kind`."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return int(np.prod(tensor.shape, dtype=np.int64)) // block * size


def packed(tensor: Tensor, kind: Kind) -> Iterator[Bytes]:
    """The tensor's bytes as `kind`, some rows at a time. Raises HostError if `kind` cannot hold
    its values."""
    rows = max(1, CHUNK // max(1, int(np.prod(tensor.shape[1:], dtype=np.int64))))
    for first in range(0, tensor.shape[0], rows):
        last = min(first + rows, tensor.shape[0])
        if tensor.copy is not None and kind == tensor.stored:
            yield tensor.copy(first, last)
        else:
            yield _pack(tensor, tensor.read(first, last), kind)


def _pack(tensor: Tensor, rows: np.ndarray, kind: Kind) -> Bytes:
    flat = np.ascontiguousarray(rows, np.float32).reshape(len(rows), -1)
    largest = np.abs(flat).max(initial=0)
    if not np.isfinite(largest):
        raise HostError(f"{tensor.name} holds values that are no finite numbers.")
    if kind == Kind.F16 and largest > np.finfo(np.float16).max:
        raise HostError(f"{tensor.name} holds {largest:g}, too much for f16: choose bf16 or f32.")
    if kind in kquants.PACKERS:
        return kquants.quantize(flat, kind)
    return np.ascontiguousarray(gguf.quants.quantize(flat, kind)).view(np.uint8)
