"""A model on its way from a source to a GGUF file: what the writer needs, and no weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import numpy.typing as npt
from gguf import GGMLQuantizationType

Floats = npt.NDArray[Any]  # float32
Bytes = npt.NDArray[Any]  # uint8


@dataclass(frozen=True)
class Tensor:
    """A tensor under its GGUF name, read by rows.

    `shape` is rows first; `read(first, last)` gives these rows, (last - first, *shape[1:]) float32.
    `stored` is the type that loses nothing. A tensor that comes from a GGUF file has its bytes in
    `copy(first, last)`, (last - first, bytes a row); one of another source has None there.
    """

    name: str
    shape: tuple[int, ...]
    stored: GGMLQuantizationType
    read: Callable[[int, int], Floats]
    copy: Callable[[int, int], Bytes] | None = None


@dataclass(frozen=True)
class Model:
    """`describe` adds all metadata to a writer, but for the architecture and the types of weights.

    `file_type` is the source's `general.file_type`, which stays if nothing is quantized.
    """

    name: str
    architecture: str
    license: str
    file_type: int
    tensors: list[Tensor]
    describe: Callable[[Any], None]


EMBEDDING = gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.TOKEN_EMBD] + ".weight"
OUTPUT = gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.OUTPUT] + ".weight"
