"""Small arrays whose elements the CPU knows while a plan is recorded: the arithmetic of shapes.

Elements are Python numbers, or sizes that depend on axes (``axes.Expression``). There is no NumPy
here: on the GPU path the tab has none.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product as indices
from math import isnan, prod
from typing import Any

from engine.graph.axes import Expression, UndeterminedError
from engine.ops.layout import Layout

LIMIT = 1 << 14  # elements; what is larger is computed on the device
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
INTEGER_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64}


@dataclass(frozen=True)
class Known:
    """Elements in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    data: tuple[Any, ...]

    @property
    def layout(self) -> Layout:
        """Row-major."""
        return Layout.of(self.shape)

    def taken(self, layout: Layout) -> Known:
        """The elements that a layout of this array names."""
        return Known(self.dtype, layout.shape, tuple(self.data[i] for i in places(layout)))

    def to_bytes(self) -> bytes:
        """Elements as a device holds them: f32, or i32 (OverflowError if one does not fit)."""
        if any(isinstance(value, Expression) for value in self.data):
            raise UndeterminedError
        if self.dtype in FLOATS:
            return array("f", map(float, self.data)).tobytes()
        return array("i", map(int, self.data)).tobytes()


def places(layout: Layout) -> Iterable[int]:
    """Where the elements of a layout lie, in row-major order of its shape."""
    ranges = [range(0, n * s, s) if s else [0] * n for n, s in _pairs(layout)]
    return (layout.offset + sum(index) for index in indices(*ranges))


def _pairs(layout: Layout) -> Iterable[tuple[int, int]]:
    return zip(layout.shape, layout.strides, strict=True)


def scalar(dtype: str, value: Any) -> Known:
    """An array of rank 0."""
    return Known(dtype, (), (value,))


def vector(values: Sequence[Any], dtype: str = "i64") -> Known:
    """An array of rank 1."""
    return Known(dtype, (len(values),), tuple(values))


def mapped(
    function: Callable[..., Any], dtype: str, shape: tuple[int, ...], *inputs: Known
) -> Known:
    """``function`` of the elements of inputs, each broadcast to ``shape``."""
    if prod(shape) > LIMIT:
        raise UndeterminedError
    columns = (known.taken(known.layout.expanded(shape)).data for known in inputs)
    return Known(dtype, shape, tuple(function(*row) for row in zip(*columns, strict=True)))


def cast(value: Any, dtype: str) -> Any:
    """One element as another type, as C casts: truncated, wrapped around, rounded to f32."""
    if isinstance(value, Expression):
        if dtype in INTEGER_BITS:
            return value
        raise UndeterminedError
    if dtype in FLOATS:
        return rounded(float(value)) if dtype == "f32" else float(value)
    if dtype == "bool":
        return bool(value)
    if isinstance(value, float) and (isnan(value) or abs(value) > 2**63):
        raise UndeterminedError
    bits = INTEGER_BITS[dtype]
    wrapped = int(value) & ((1 << bits) - 1)
    signed = dtype.startswith("i") and wrapped >> (bits - 1)
    return wrapped - (1 << bits) if signed else wrapped


def rounded(value: float) -> float:
    """The nearest f32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
