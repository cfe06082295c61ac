"""The tensors of a Hugging Face folder: model.safetensors, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.utility import LocalTensor, SafetensorsLocal

from engine.host.convert.model import Bytes, Floats, Tensor
from engine.host.convert.ranges import Range
from engine.host.errors import HostError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def _from_bf16(data: Bytes) -> Floats:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


# Type in the file -> bytes an element, the GGUF type that loses nothing, and the decoding.
DTYPES: dict[str, tuple[int, Kind, Callable[[Bytes], Floats]]] = {
    "F64": (8, Kind.F32, lambda data: data.view("<f8").astype(np.float32)),
    "F32": (4, Kind.F32, lambda data: data.view("<f4")),
    "F16": (2, Kind.F16, lambda data: data.view("<f2").astype(np.float32)),
    "BF16": (2, Kind.BF16, _from_bf16),
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises HostError when the file is missing or holds something else."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HostError(f"{path} is missing.") from None
    except (OSError, ValueError) as error:
        raise HostError(f"{path} cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise HostError(f"{path} should hold a JSON object.")
    return fields


def open_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors under the names they have in the files; nothing but headers is read.

    Raises HostError for a file or a tensor that is missing or damaged, and for a type that is no
    plain float.
    """
    wanted: dict[str, str] | None = None
    if (folder / INDEX).is_file():
        wanted = read_json(folder / INDEX).get("weight_map")
        if not isinstance(wanted, dict) or not wanted:
            raise HostError(f"{folder / INDEX} names no tensors.")
    files = sorted(set(wanted.values())) if wanted else [SINGLE]
    found = {name: tensor for file in files for name, tensor in _open(folder / file).items()}
    for name in wanted or ():
        if name not in found:
            raise HostError(f"{folder / INDEX} names the tensor {name}, which no file has.")
    return found


def _open(path: Path) -> dict[str, Tensor]:
    try:
        size = path.stat().st_size
        entries = SafetensorsLocal(path).tensors
    except FileNotFoundError:
        raise HostError(f"{path} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{path} is no safetensors file: {error}") from None
    return {name: _tensor(path, size, name, entry) for name, entry in entries.items()}


def _tensor(path: Path, size: int, name: str, entry: LocalTensor) -> Tensor:
    if entry.dtype not in DTYPES:
        kinds = ", ".join(DTYPES)
        raise HostError(f"{name} in {path} has the type {entry.dtype}; {kinds} are supported.")
    width, stored, decode = DTYPES[entry.dtype]
    shape = tuple(int(count) for count in entry.shape)
    row = int(np.prod(shape[1:], dtype=np.int64)) * width
    at = entry.data_range
    if not shape or shape[0] * row != at.size or at.offset + at.size > size:
        raise HostError(f"{name} in {path} is damaged: download the file again.")
    rows = Range(path, at.offset, row).rows

    def read(first: int, last: int) -> Floats:
        return decode(rows(first, last).reshape(-1)).reshape(last - first, *shape[1:])

    return Tensor(name, shape, stored if len(shape) > 1 else Kind.F32, read)
