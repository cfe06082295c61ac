"""Where the elements of an array lie in a buffer: transposed, sliced and broadcast without a copy.

Element i of an array is at ``offset + sum(i * strides)``. Shapes may be symbolic, so there is
nothing here but +, -, *, // and comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Layout:
    """Shape, strides and offset, in elements."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any = 0

    @staticmethod
    def of(shape: Sequence[Any]) -> Layout:
        """Row-major, from the start of a buffer."""
        return Layout(tuple(shape), tuple(prod(shape[i + 1 :]) for i in range(len(shape))))

    @property
    def contiguous(self) -> bool:
        """Whether this is row-major and has no offset."""
        same = zip(self.shape, self.strides, Layout.of(self.shape).strides, strict=True)
        return self.offset == 0 and all(size == 1 or a == b for size, a, b in same)

    def permuted(self, order: Sequence[int]) -> Layout:
        """Axis i is axis ``order[i]`` of this."""
        shape = tuple(self.shape[i] for i in order)
        return Layout(shape, tuple(self.strides[i] for i in order), self.offset)

    def sliced(self, axis: int, start: Any, step: int, size: Any) -> Layout:
        """Elements start, start + step, ... of an axis, ``size`` of them."""
        stride = self.strides[axis]
        return Layout(
            (*self.shape[:axis], size, *self.shape[axis + 1 :]),
            (*self.strides[:axis], stride * step, *self.strides[axis + 1 :]),
            self.offset + stride * start,
        )

    def expanded(self, shape: Sequence[Any]) -> Layout:
        """Broadcast to ``shape``, which has at least as many axes."""
        new = len(shape) - len(self.shape)
        own = zip(self.shape, self.strides, shape[new:], strict=True)
        strides = [stride if have == want else 0 for have, stride, want in own]
        return Layout(tuple(shape), (*[0] * new, *strides), self.offset)

    def unsqueezed(self, axes: Sequence[int]) -> Layout:
        """With axes of length 1 put where ``axes`` says, in the result's numbering."""
        shape, strides = list(self.shape), list(self.strides)
        for axis in sorted(axes):
            shape.insert(axis, 1)
            strides.insert(axis, 0)
        return Layout(tuple(shape), tuple(strides), self.offset)

    def squeezed(self, axes: Sequence[int]) -> Layout:
        """Without axes, which have length 1."""
        return self.permuted([i for i in range(len(self.shape)) if i not in axes])

    def reshaped(self, shape: Sequence[Any]) -> Layout | None:
        """The same elements in the same order, or None if that takes a copy."""
        if self.contiguous:
            return Layout.of(shape)
        mine, theirs = _merged(self), [size for size in shape if size != 1]
        strides: list[Any] = []
        for size, stride in reversed(mine):
            # The axes of the new shape that make this one, from the last on.
            while size != 1:
                if not theirs or size % theirs[-1]:
                    return None
                last = theirs.pop()
                strides.insert(0, stride)
                stride, size = stride * last, size // last
        if theirs:
            return None
        left = iter(strides)
        return Layout(tuple(shape), tuple(next(left) if s != 1 else 0 for s in shape), self.offset)


def _merged(layout: Layout) -> list[tuple[Any, Any]]:
    """Size and stride of each axis; those that follow each other without a gap are one."""
    merged: list[tuple[Any, Any]] = []
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def collapsed(layouts: Sequence[Layout]) -> list[Layout]:
    """The same layouts of one shape with as few axes as they can all have."""
    shape = layouts[0].shape
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in layouts]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        own = [layout.strides[axis] for layout in layouts]
        if sizes and all(s[-1] == stride * size for s, stride in zip(strides, own, strict=True)):
            sizes[-1] *= size
            for s, stride in zip(strides, own, strict=True):
                s[-1] = stride
        else:
            sizes.append(size)
            for s, stride in zip(strides, own, strict=True):
                s.append(stride)
    pairs = zip(layouts, strides, strict=True)
    return [Layout(tuple(sizes), tuple(s), layout.offset) for layout, s in pairs]
