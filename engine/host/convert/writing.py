"""A model into a GGUF file: header first, then the tensors, some rows at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from engine.errors import OctavoError
from engine.host.convert import quants
from engine.host.convert.gguf_source import header_of
from engine.host.convert.model import Model, Tensor
from engine.host.errors import HostError
from engine.host.progress import Step, megabytes
from engine.models import open_model
from engine.tokenizer.spec import tokenizer_json

COPIES = 2  # the file, and its shards
# What is wrong then is not the file.
NOT_YET = ("model.architecture", "model.quantization", "tokenizer.unsupported")


@dataclass(frozen=True)
class _Stream:
    """A tensor for GGUFWriter.write_tensor_data, which asks an array for no more than this."""

    tensor: Tensor
    kind: Kind
    nbytes: int
    wrote: Callable[[int], None]

    def tofile(self, file: IO[bytes]) -> None:
        """Appends the packed rows to `file`."""
        for data in quants.packed(self.tensor, self.kind):
            data.tofile(file)
            self.wrote(data.nbytes)


def write(path: Path, model: Model, quant: str | None) -> None:
    """Writes `model` to `path`.

    Raises HostError if the engine would find it damaged, or if there is no room for it, before any
    weights are read.
    """
    writer = gguf.GGUFWriter(path, model.architecture)
    try:
        kinds = [quants.target(tensor, quant) for tensor in model.tensors]
        sizes = list(map(quants.nbytes, model.tensors, kinds))
        _write_header(writer, model, quant, list(zip(model.tensors, kinds, sizes, strict=True)))
        whole = _whole_size(path, sizes)
        check_loadable(path, whole)
        check_room(path.parent, COPIES * whole)
        done = 0
        with Step(f"Writing {path.name.removesuffix('.part')}") as step:

            def wrote(count: int) -> None:
                nonlocal done
                done += count
                step.update(done, sum(sizes))

            for tensor, kind, size in zip(model.tensors, kinds, sizes, strict=True):
                stream = _Stream(tensor, kind, size, wrote)
                writer.write_tensor_data(cast(Any, stream))
    finally:
        writer.close()


def _write_header(
    writer: gguf.GGUFWriter,
    model: Model,
    quant: str | None,
    entries: list[tuple[Tensor, Kind, int]],
) -> None:
    model.describe(writer)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(quants.QUANTS[quant][2] if quant else model.file_type)
    for tensor, kind, size in entries:
        dtype = np.dtype(np.float32)  # anything but bytes: the shape is that of the values
        writer.add_tensor_info(tensor.name, tensor.shape, dtype, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _whole_size(path: Path, sizes: list[int]) -> int:
    """Bytes of the file when the tensors are in it."""
    alignment = gguf.GGUF_DEFAULT_ALIGNMENT
    return sum(-(-size // alignment) * alignment for size in [path.stat().st_size, *sizes])


def check_loadable(path: Path, size: int) -> None:
    """Says if the engine cannot run the file of `size` bytes that begins as `path` does.

    Raises HostError if something is wrong with the file.
    """
    header = header_of(path, size)
    try:
        open_model(header)
        tokenizer_json(header.metadata)
    except OctavoError as error:
        if error.code not in NOT_YET:
            raise HostError(f"The model is not whole: {error.message}") from None
        print(f"note: Octavo cannot run this model yet: {error.message}", flush=True)


def check_room(folder: Path, needed: int) -> None:
    """Raises HostError if fewer than `needed` bytes are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HostError(
            f"{folder} has not enough room: {megabytes(needed)} are needed, for the file and its "
            f"shards, and {megabytes(free)} are free."
        )
