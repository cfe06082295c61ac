"""Tensors of an ONNX file as NumPy arrays, those in other files too."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from engine.graph.known import FLOATS, Known
from engine.graph.model import DTYPES, Constant
from engine.host.errors import HostError

INLINE_FLOATS = 64  # elements up to which a constant is in the manifest
INLINE_INTEGERS = 4096  # shape arithmetic needs them
# Two elements a byte, the first of them low; they are read as bytes.
HALF_BYTES: dict[int, Any] = {
    TensorProto.INT4: np.dtype(np.int8),
    TensorProto.UINT4: np.dtype(np.uint8),
}
_NUMPY = {
    name: np.dtype(helper.tensor_dtype_to_np_dtype(number)) for number, name in DTYPES.items()
}


def read_tensor(tensor: Any, folder: Path) -> Any:
    """The elements of a TensorProto; those in another file are mapped, not read.

    Raises HostError if they are missing, or lie outside of `folder`, the model's.
    """
    if tensor.data_type not in DTYPES and tensor.data_type not in HALF_BYTES:
        kind = TensorProto.DataType.Name(tensor.data_type)
        raise HostError(f"The tensor {tensor.name!r} is of type {kind}, which is not supported.")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, folder)
    try:
        array = numpy_helper.to_array(tensor)
        return array.astype(HALF_BYTES.get(tensor.data_type, array.dtype), copy=False)
    except (ValueError, TypeError) as error:
        raise HostError(f"The tensor {tensor.name!r} is damaged: {error}") from None


def _external(tensor: Any, folder: Path) -> Any:
    where = {entry.key: entry.value for entry in tensor.external_data}
    name = where.get("location", "")
    path = (folder / name).resolve()
    if not name or not path.is_relative_to(folder.resolve()):
        raise HostError(f"The tensor {tensor.name!r} lies outside of the model's folder: {name!r}.")
    if not path.is_file():
        raise HostError(f"The file {name!r} with the tensor {tensor.name!r} is missing.")
    is_half, shape = tensor.data_type in HALF_BYTES, tuple(tensor.dims)
    dtype = np.dtype(np.uint8) if is_half else _NUMPY[DTYPES[tensor.data_type]]
    needed = -(-prod(shape) // 2) if is_half else prod(shape) * dtype.itemsize
    try:
        offset = int(where.get("offset", 0))
        length = int(where.get("length", needed))
    except ValueError:
        raise HostError(f"The place of the tensor {tensor.name!r} is no number.") from None
    if min(offset, *shape, needed) < 0 or length != needed or offset + needed > path.stat().st_size:
        raise HostError(f"{name!r} has not the bytes of the tensor {tensor.name!r}.")
    if not needed:
        return np.zeros(shape, dtype)
    if is_half:
        return _halves(np.fromfile(path, dtype, needed, offset=offset), tensor.data_type, shape)
    return np.memmap(path, dtype, "r", offset, shape)


def _halves(data: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    """The elements of bytes that have two each."""
    numbers = np.stack([data & 15, data >> 4], -1).ravel()[: prod(shape)].reshape(shape)
    if kind == TensorProto.INT4:
        numbers = np.where(numbers > 7, numbers - 16, numbers)  # bytes wrap around
    return numbers.astype(HALF_BYTES[kind])


def constant_of(name: str, array: Any) -> Constant:
    """A constant; a small one with its elements, which shape rules and passes can see."""
    dtype = dtype_of(array)
    limit = INLINE_FLOATS if array.dtype.kind not in "iub" else INLINE_INTEGERS
    value = known_of(array) if array.size <= limit else None
    return Constant(name, dtype, tuple(array.shape), value, array=array)


def known_of(array: Any) -> Known:
    """A small array as the shape arithmetic takes it."""
    return Known(dtype_of(array), tuple(array.shape), tuple(_plain(array).ravel().tolist()))


def _plain(array: Any) -> Any:
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def dtype_of(array: Any) -> str:
    """The graph's name for the element type of a NumPy array."""
    return dtype_name(helper.np_dtype_to_tensor_dtype(array.dtype))


def dtype_name(number: int) -> str:
    """The graph's name for one of ONNX's element types: whatever floats are in the file, they are
    computed as f32."""
    name = DTYPES[number]
    return "f32" if name in FLOATS else name


def stored(constant: Constant) -> Any:
    """Elements as the data has them: f32 or i32 in a row, or blocks."""
    array, name = constant.array, constant.name
    if constant.quant != "F32":
        return np.ascontiguousarray(array).reshape(-1)
    if array.dtype.kind not in "iub":
        return np.ascontiguousarray(array, np.float32).reshape(-1)
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise HostError(f"The tensor {name!r} has whole numbers of more than 32 bits.")
    return np.ascontiguousarray(array, np.int32).reshape(-1)
