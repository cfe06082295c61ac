"""A GGUF file as a source, whole or split into several (name-00001-of-00003.gguf)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as Kind

from engine.errors import OctavoError
from engine.host.convert.model import Floats, Model, Tensor
from engine.host.convert.ranges import Range
from engine.host.errors import HostError
from engine.host.files import name_of, parts_of
from engine.weights.gguf import GGUF, HeaderIncomplete, TensorInfo, read_header

HEAD = 1 << 20  # bytes; doubled until the header is whole
# The file that is written has its own.
NOT_COPIED = (
    *("GGUF.", "split.", "general.architecture", "general.alignment", "general.file_type"),
    "general.quantization_version",
)


def header_of(path: Path, size: int | None = None) -> GGUF:
    """The header of a file that has, or will have, `size` bytes; HostError if it is invalid."""
    size = path.stat().st_size if size is None else size
    count = HEAD
    while True:
        with path.open("rb") as file:
            head = file.read(count)
        try:
            return read_header(head, size)
        except HeaderIncomplete as more:
            if len(head) < count:
                raise HostError(f"{path} ends too early: download it again.") from None
            count = max(2 * count, more.needed)
        except OctavoError as error:
            raise HostError(f"{path}: {error.message}") from None


def open_gguf(path: Path) -> Model:
    """The model in a GGUF file and the other parts of it."""
    parts = parts_of(path)
    headers = {part: header_of(part) for part in parts}
    metadata = headers[parts[0]].metadata
    tensors = [
        _tensor(part, info) for part, header in headers.items() for info in header.tensors.values()
    ]
    architecture = str(metadata.get("general.architecture"))

    def describe(writer: Any) -> None:
        for field in gguf.GGUFReader(parts[0]).fields.values():
            if not field.name.startswith(NOT_COPIED):
                kind, *element = field.types
                value = field.contents()
                if value not in ("", []):
                    writer.add_key_value(field.name, value, kind, *element[-1:])

    license_id = str(metadata.get("general.license", ""))
    file_type = metadata.get("general.file_type")
    file_type = file_type if isinstance(file_type, int) else gguf.LlamaFileType.GUESSED
    return Model(name_of(path), architecture, license_id, file_type, tensors, describe)


def _tensor(path: Path, info: TensorInfo) -> Tensor:
    kind = Kind[info.quant]
    if info.nbytes % info.shape[0]:
        raise HostError(f"{info.name} is a quantized vector, which is not supported.")
    copy = Range(path, info.offset, info.nbytes // info.shape[0]).rows

    def read(first: int, last: int) -> Floats:
        try:
            values: Floats = gguf.quants.dequantize(copy(first, last), kind)
        except NotImplementedError:
            raise HostError(f"{info.name} is {info.quant}, which cannot be converted.") from None
        return values.reshape(last - first, *info.shape[1:])

    return Tensor(info.name, info.shape, kind, read, copy)
