"""Reader of GGUF headers: metadata and the table of tensors, from the first bytes of a file.

Layout (ggml's docs/gguf.md, little-endian): magic, version u32, tensor count u64, metadata
count u64, the metadata pairs, the tensor table, padding, tensor data. Every length in the
file is untrusted: it is checked against the size of the file before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, NoReturn

from engine.errors import OctavoError, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NAME = 1024  # characters
# Real headers stay far below these; they bound the memory a hostile one can claim.
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ELEMENTS = 1 << 21
MAX_ALIGNMENT = 1 << 20

# Type id -> (name, elements a block, bytes a block), as in ggml.h; removed ids are absent.
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, Struct] = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: Struct("<I"),
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<?"),
    10: Struct("<Q"),
    11: Struct("<q"),
    12: Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
# The least bytes a metadata pair (key length, type, value) and a tensor entry (name length,
# dimension count, one dimension, type, offset) take: they bound the counts by the file size.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


class HeaderIncomplete(Exception):  # noqa: N818 - a request for more bytes, not a failure
    """The header goes on past the bytes given, and the file is longer.

    ``needed`` is a lower bound, in bytes from the start of the file, of what to pass next.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(f"the header needs at least {needed} bytes")
        self.needed = needed


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in the file.

    ``shape`` is rows first (ggml lists the fastest dimension first; this is the reverse),
    ``offset`` is in bytes from the start of the file, ``nbytes`` the stored size.
    """

    name: str
    shape: tuple[int, ...]
    quant: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUF:
    """A parsed header. ``data_offset`` is where tensor data begins, ``size`` the file's bytes."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_offset: int
    size: int


def read_header(data: bytes | memoryview, file_size: int) -> GGUF:
    """Parse the header of a GGUF file of ``file_size`` bytes from its first bytes ``data``.

    Raises HeaderIncomplete when ``data`` is too short but the file is not, and OctavoError
    with code gguf.invalid, gguf.version, gguf.truncated or model.quantization.
    """
    cursor = _Cursor(bytes(data[:file_size]), file_size)
    version = _read_preamble(cursor)
    tensor_count = cursor.count(MAX_TENSORS, "tensors")
    pair_count = cursor.count(MAX_PAIRS, "metadata entries")
    cursor.fits(pair_count * _MIN_PAIR_BYTES + tensor_count * _MIN_TENSOR_BYTES)
    metadata = _read_metadata(cursor, pair_count)
    alignment = _alignment(metadata)
    entries = [_read_entry(cursor, alignment) for _ in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = _place(entries, data_offset, file_size)
    return GGUF(version, metadata, tensors, data_offset, file_size)


def _invalid(message: str) -> NoReturn:
    raise OctavoError(
        "gguf.invalid", message, "The file may be damaged: download it again, or choose another."
    )


def _truncated(message: str) -> NoReturn:
    raise OctavoError("gguf.truncated", message, "The file ends too early: download it again.")


class _Cursor:
    """A position in the header that moves only over bytes that are there."""

    def __init__(self, data: bytes, file_size: int) -> None:
        self.data = data
        self.file_size = file_size
        self.position = 0
        self._elements = 0

    def fits(self, size: int) -> int:
        """Check that ``size`` more bytes can be in the file at all; returns where they end."""
        end = self.position + size
        if end > self.file_size:
            _truncated(f"The header needs {end} bytes, but the file has only {self.file_size}.")
        return end

    def take(self, size: int) -> int:
        """Move over ``size`` bytes and return where they began."""
        end = self.fits(size)
        if end > len(self.data):
            raise HeaderIncomplete(end)
        start, self.position = self.position, end
        return start

    def scalar(self, kind: Struct) -> Any:
        """The next number."""
        return kind.unpack_from(self.data, self.take(kind.size))[0]

    def count(self, limit: int, what: str) -> int:
        """The next u64, as a number of things that may be at most ``limit``."""
        value = int(self.scalar(_U64))
        if value > limit:
            _invalid(f"The header claims {value} {what}; at most {limit} are allowed.")
        return value

    def claim(self, elements: int) -> None:
        """Account for array elements, so that all arrays together stay bounded."""
        self._elements += elements
        if self._elements > MAX_ELEMENTS:
            _invalid(f"The metadata holds more than {MAX_ELEMENTS} array elements.")

    def string(self) -> str:
        """The next length-prefixed UTF-8 string."""
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """The next ``count`` strings: the hot loop, since a vocabulary has 10^5 of them."""
        self.fits(8 * count)
        data, position, available = self.data, self.position, len(self.data)
        length_at: Callable[[bytes, int], tuple[int]] = _U64.unpack_from
        result: list[str] = []
        append = result.append
        for _ in range(count):
            start = position + 8
            if start > available:
                self._stop_at(position, 8)
            position = start + length_at(data, position)[0]
            if position > available:
                self._stop_at(start, position - start)
            try:
                append(data[start:position].decode())
            except UnicodeDecodeError:
                _invalid(f"The text at byte {start} is not valid UTF-8.")
        self.position = position
        return result

    def _stop_at(self, position: int, size: int) -> NoReturn:
        self.position = position
        self.take(size)
        raise AssertionError("take() must have raised")


def _read_preamble(cursor: _Cursor) -> int:
    magic = cursor.data[:4]
    if magic != MAGIC[: len(magic)]:
        raise OctavoError(
            "gguf.invalid", "This is not a GGUF file.", "Choose a file that ends in .gguf."
        )
    cursor.take(4)
    version = int(cursor.scalar(_U32))
    if version & 0xFFFF == 0:
        _invalid("The GGUF file is big-endian, which is not supported.")
    if version not in VERSIONS:
        raise OctavoError(
            "gguf.version",
            f"GGUF version {version} is not supported.",
            "Versions 2 and 3 are: convert the model again with a current tool.",
        )
    return version


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = _read_name(cursor, "metadata key")
        if key in metadata:
            _invalid(f"The metadata key {shown(key)} occurs twice.")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_name(cursor: _Cursor, what: str) -> str:
    name = cursor.string()
    if len(name) > MAX_NAME:
        _invalid(f"A {what} is longer than {MAX_NAME} characters.")
    return name


def _read_value(cursor: _Cursor, key: str) -> Any:
    kind = int(cursor.scalar(_U32))
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _SCALARS:
        _invalid(f"The metadata key {shown(key)} has the unknown value type {kind}.")
    return cursor.scalar(_SCALARS[kind])


def _read_array(cursor: _Cursor, key: str) -> list[Any]:
    kind = int(cursor.scalar(_U32))
    if kind == _ARRAY:
        # The format allows nesting, but no model uses it and it invites runaway recursion.
        _invalid(f"The metadata key {shown(key)} is an array of arrays.")
    count = int(cursor.scalar(_U64))
    if kind != _STRING and kind not in _SCALARS:
        _invalid(f"The metadata key {shown(key)} is an array of the unknown type {kind}.")
    cursor.fits(count * (8 if kind == _STRING else _SCALARS[kind].size))
    cursor.claim(count)
    if kind == _STRING:
        return cursor.strings(count)
    return _read_numbers(cursor, _SCALARS[kind], count)


def _read_numbers(cursor: _Cursor, kind: Struct, count: int) -> list[Any]:
    start = cursor.take(count * kind.size)
    many = Struct(f"<{count}{kind.format[1:]}")
    return list(many.unpack_from(cursor.data, start))


def _alignment(metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    power_of_two = type(value) is int and 8 <= value <= MAX_ALIGNMENT and value & (value - 1) == 0
    if not power_of_two:
        _invalid(f"The alignment {shown(value)} is not a power of two from 8 to {MAX_ALIGNMENT}.")
    return int(value)


def _read_entry(cursor: _Cursor, alignment: int) -> TensorInfo:
    """One entry of the tensor table; its offset is still relative to the tensor data."""
    name = _read_name(cursor, "tensor name")
    dims = int(cursor.scalar(_U32))
    if not 1 <= dims <= MAX_DIMS:
        _invalid(f"The tensor {shown(name)} has {dims} dimensions; 1 to {MAX_DIMS} are allowed.")
    shape = tuple(int(cursor.scalar(_U64)) for _ in range(dims))[::-1]
    quant, nbytes = _storage(name, shape, int(cursor.scalar(_U32)))
    offset = int(cursor.scalar(_U64))
    if offset % alignment:
        _invalid(f"The tensor {shown(name)} is not aligned to {alignment} bytes.")
    return TensorInfo(name, shape, quant, offset, nbytes)


def _storage(name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
    if type_id not in GGML_TYPES:
        raise OctavoError(
            "model.quantization",
            f"The tensor {shown(name)} has the unknown quantization type {type_id}.",
            "Choose another quantization of the model, such as Q4_1 or Q8_0.",
        )
    quant, block, block_bytes = GGML_TYPES[type_id]
    elements = 1
    for size in shape:
        elements *= size
    if elements == 0:
        _invalid(f"The tensor {shown(name)} is empty.")
    if shape[-1] % block:
        _invalid(f"The rows of tensor {shown(name)} do not divide into {quant} blocks of {block}.")
    return quant, elements // block * block_bytes


def _place(entries: list[TensorInfo], data_offset: int, file_size: int) -> dict[str, TensorInfo]:
    """Make offsets absolute, checking that tensors lie in the file and apart from each other."""
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        if entry.name in tensors:
            _invalid(f"The tensor {shown(entry.name)} occurs twice.")
        start = data_offset + entry.offset
        if start + entry.nbytes > file_size:
            _truncated(
                f"The tensor {shown(entry.name)} ends at byte {start + entry.nbytes}, "
                f"but the file has only {file_size}."
            )
        tensors[entry.name] = TensorInfo(entry.name, entry.shape, entry.quant, start, entry.nbytes)
    _check_apart(list(tensors.values()))
    return tensors


def _check_apart(tensors: list[TensorInfo]) -> None:
    tensors.sort(key=lambda tensor: tensor.offset)
    for before, after in pairwise(tensors):
        if before.offset + before.nbytes > after.offset:
            _invalid(f"The tensors {shown(before.name)} and {shown(after.name)} overlap.")
