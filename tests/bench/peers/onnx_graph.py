"""ONNX files as protobuf messages, as far as placing weights beside a graph needs it.

A message is kept as its fields in the order of the file, so that what is not understood here is
written back as it was. The numbers of the fields are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

VARINT, LENGTH = 0, 2  # wire types
FIXED = {1: 8, 5: 4}  # wire type -> bytes

Value: TypeAlias = int | bytes
Field: TypeAlias = tuple[int, int, Value]  # number, wire type, value
Path: TypeAlias = tuple[int, ...]  # numbers of the fields on the way down

# From the model down to what is read or changed.
INITIALIZER: Path = (7, 5)
ATTRIBUTE: Path = (7, 1, 5)
DIMENSIONS: tuple[Path, ...] = ((7, 11, 2, 1, 2, 1), (7, 12, 2, 1, 2, 1))  # of inputs, outputs
DIM_VALUE, DIM_PARAM = 1, 2
ATTRIBUTE_NAME, ATTRIBUTE_INT = 1, 3
DIMS, DATA_TYPE, NAME, EXTERNAL = 1, 2, 8, 13  # of a tensor
KEY, TEXT = 1, 2  # of an entry of `external_data`


@dataclass(frozen=True)
class External:
    """A tensor whose values lie in another file."""

    name: str
    shape: tuple[int, ...]
    data_type: int  # TensorProto.DataType
    offset: int
    length: int


def externals(model: bytes) -> Iterator[External]:
    """The tensors of `model` that lie in another file, in the graph's order."""
    for tensor in _at(model, INITIALIZER):
        fields = list(_fields(tensor))
        entries = [dict(_numbered(entry)) for entry in _at(tensor, (EXTERNAL,))]
        place = {_text(entry[KEY]): _text(entry[TEXT]) for entry in entries}
        if not place:
            continue
        single = dict(_numbered(tensor))
        yield External(
            name=_text(single[NAME]),
            shape=tuple(size for n, kind, value in fields if n == DIMS for size in _ints(value)),
            data_type=int(single[DATA_TYPE]),
            offset=int(place["offset"]),
            length=int(place["length"]),
        )


def with_data_file(model: bytes, name: str) -> bytes:
    """`model` with its tensors' values in the file `name`."""

    def moved(entry: bytes) -> bytes:
        fields = dict(_numbered(entry))
        if _text(fields[KEY]) != "location":
            return entry
        return _message([(KEY, LENGTH, fields[KEY]), (TEXT, LENGTH, name.encode())])

    return _edited(model, (*INITIALIZER, EXTERNAL), moved)


def with_dimension(model: bytes, name: str, size: int) -> bytes:
    """`model` whose inputs and outputs have `size` where they had the symbol `name`."""

    def fixed(dimension: bytes) -> bytes:
        is_it = (DIM_PARAM, LENGTH, name.encode()) in _fields(dimension)
        return _message([(DIM_VALUE, VARINT, size)]) if is_it else dimension

    for path in DIMENSIONS:
        model = _edited(model, path, fixed)
    return model


def with_attribute(model: bytes, name: str, value: int) -> bytes:
    """`model` in which every attribute `name` of a node is `value`."""

    def changed(attribute: bytes) -> bytes:
        fields = list(_fields(attribute))
        if (ATTRIBUTE_NAME, LENGTH, name.encode()) not in fields:
            return attribute
        return _message([(n, kind, value if n == ATTRIBUTE_INT else v) for n, kind, v in fields])

    return _edited(model, ATTRIBUTE, changed)


def _at(message: bytes, path: Path) -> Iterator[bytes]:
    """Every message that `path` leads to."""
    if not path:
        yield message
        return
    for number, _, value in _fields(message):
        if number == path[0] and isinstance(value, bytes):
            yield from _at(value, path[1:])


def _edited(message: bytes, path: Path, edit: Callable[[bytes], bytes]) -> bytes:
    """`message` with `edit` applied to every message that `path` leads to."""
    if not path:
        return edit(message)
    return _message(
        (n, kind, _edited(v, path[1:], edit) if n == path[0] and isinstance(v, bytes) else v)
        for n, kind, v in _fields(message)
    )


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, kind, value
            continue
        size, at = _varint(message, at) if kind == LENGTH else (FIXED[kind], at)
        yield number, kind, message[at : at + size]
        at += size


def _numbered(message: bytes) -> Iterator[tuple[int, Value]]:
    return ((number, value) for number, _, value in _fields(message))


def _message(fields: Iterator[Field] | list[Field]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        out += _as_varint(number << 3 | kind)
        if isinstance(value, int):
            out += _as_varint(value)
        else:
            out += (_as_varint(len(value)) if kind == LENGTH else b"") + value
    return bytes(out)


def _ints(value: Value) -> list[int]:
    """A repeated integer: one of it, or many packed."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _text(value: Value) -> str:
    assert isinstance(value, bytes)
    return value.decode()
