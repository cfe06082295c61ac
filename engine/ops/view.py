"""Arrays of any rank in the buffers of tensors: what the operations of graphs read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from engine.ops.layout import Layout
from engine.plan import DType, PlanBuilder, Tensor


@dataclass(frozen=True)
class View:
    """The elements of ``tensor`` that ``layout`` names: f32, or i32, which booleans are too."""

    tensor: Tensor
    layout: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.layout.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def with_layout(self, layout: Layout) -> View:
        """Other elements of the same buffer."""
        return View(self.tensor, layout)


def whole(tensor: Tensor, shape: Sequence[int] | None = None) -> View:
    """All elements of a tensor, row-major, in its own shape or another one."""
    return View(tensor, Layout.of(tensor.shape if shape is None else shape))


def new_view(b: PlanBuilder, label: str, shape: Sequence[int], dtype: DType = "f32") -> View:
    """A new activation."""
    return whole(b.activation(label, *shape, dtype=dtype))


def elements_of(array: Any, layout: Layout) -> Any:
    """The elements that a layout names, as a NumPy array in the same memory."""
    from numpy.lib.stride_tricks import as_strided

    flat = array.reshape(-1)
    strides = tuple(stride * flat.itemsize for stride in layout.strides)
    if not prod(layout.shape):
        return flat[:0].reshape(layout.shape)
    return as_strided(flat[layout.offset :], layout.shape, strides)
