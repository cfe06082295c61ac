"""Sizes that depend on axes, layouts without NumPy, and the arithmetic of known elements."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import OctavoError
from engine.graph.axes import UndeterminedError, axis, parse_size, same, sign, value_of
from engine.graph.known import Known, cast
from engine.ops.layout import Layout, collapsed
from engine.ops.view import elements_of

B, S = axis("batch"), axis("sequence")


def test_arithmetic() -> None:
    assert B + 0 == B and B * 1 == B and B - B == 0 and B * 0 == 0
    assert (B + S) * (B - S) == B * B - S * S
    assert (2 * B * S) // (2 * S) == B and (2 * B) % B == 0
    assert (B * B - S * S) // (B + S) == B - S and (6 * B * S + 4 * S) // (3 * B + 2) == 2 * S
    assert 3 - B == -B + 3 and B // B == 1
    assert type((B + 2) - B) is int


def test_what_depends_on_the_axes() -> None:
    for question in (
        lambda: B // 2,
        lambda: B // S,
        lambda: B // 0,
        lambda: (B * B + S) // (B + S),
        lambda: 7 // B,
        lambda: B < S,
        lambda: B > 0,
        lambda: same(B, 1),
        lambda: sign(B - 1),
    ):
        with pytest.raises(UndeterminedError):
            question()
    assert B + 1 > 0 and not B + 1 < 0 and B >= -1 + B
    assert same(B, B) and not same(B, -1) and not same(B + 1, B)


def test_text() -> None:
    for size in (B, 2 * B * S + 1, B * B - 3 * S - 7, 5, -2):
        assert parse_size(str(size)) == size
    assert parse_size("past + sequence") == axis("past") + S
    assert value_of(2 * B * S + 1, {"batch": 3, "sequence": 0}) == 1


@pytest.mark.parametrize("text", ["", "a b", "2**3", "a-", "*", "a*", 1.5, None, "x" * 2000, [1]])
def test_texts_that_are_no_sizes(text: object) -> None:
    with pytest.raises(OctavoError, match="is not a size"):
        parse_size(text)


def test_too_long_an_expression_is_found_out_quickly() -> None:
    with pytest.raises(OctavoError):
        parse_size("+".join(f"a{i}" for i in range(200)))


def view(layout: Layout, array: np.ndarray) -> np.ndarray:
    found: np.ndarray = elements_of(array, layout)
    return found


def test_layouts_are_what_numpy_does() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    layout = Layout.of(x.shape)
    for mine, theirs in (
        (layout.permuted((2, 0, 1)), x.transpose(2, 0, 1)),
        (layout.sliced(1, 2, -1, 3), x[:, ::-1]),
        (layout.sliced(2, 1, 2, 2).permuted((1, 0, 2)), x[:, :, 1::2].swapaxes(0, 1)),
        (layout.unsqueezed([0, 4]), x[None, :, :, :, None]),
        (
            layout.unsqueezed([1]).expanded((5, 2, 6, 3, 4)),
            np.broadcast_to(x[:, None], (5, 2, 6, 3, 4)),
        ),
    ):
        np.testing.assert_array_equal(view(mine, x), theirs)


@pytest.mark.parametrize(
    ("layout", "shape", "possible"),
    [
        (Layout.of((2, 3, 4)), (6, 4), True),
        (Layout.of((2, 12)).sliced(1, 4, 1, 4), (2, 2, 2), True),
        (Layout.of((2, 12)).sliced(1, 4, 1, 4), (2, 1, 4), True),
        (Layout.of((2, 12)).sliced(1, 4, 1, 4), (8,), False),
        (Layout.of((3, 4)).permuted((1, 0)), (12,), False),
        (Layout.of((3, 4)).permuted((1, 0)), (2, 2, 3), True),
        (Layout.of((3, 1)).expanded((3, 4)), (3, 2, 2), True),
        (Layout.of((6, 4)).sliced(0, 1, 2, 3), (3, 2, 2), True),
    ],
)
def test_reshapes_without_a_copy(layout: Layout, shape: tuple[int, ...], possible: bool) -> None:
    x = np.arange(100)
    new = layout.reshaped(shape)
    assert (new is not None) == possible
    if new:
        np.testing.assert_array_equal(view(new, x), view(layout, x).reshape(shape))


def test_neighbouring_axes_are_joined() -> None:
    plain, turned = Layout.of((2, 3, 4)), Layout.of((4, 2, 3)).permuted((1, 2, 0))
    assert [layout.shape for layout in collapsed([plain, plain])] == [(24,), (24,)]
    assert [layout.shape for layout in collapsed([plain, turned])] == [(6, 4), (6, 4)]
    assert collapsed([Layout.of((1, 1))])[0].shape == ()


def test_known_elements() -> None:
    x = Known("i64", (2, 3), tuple(range(6)))
    assert x.taken(x.layout.permuted((1, 0))).data == (0, 3, 1, 4, 2, 5)
    assert x.to_bytes() == np.arange(6, dtype=np.int32).tobytes()
    with pytest.raises(OverflowError):
        Known("i64", (), (2**40,)).to_bytes()
    with pytest.raises(UndeterminedError):
        Known("i64", (), (B,)).to_bytes()


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [(3.9, "i64", 3), (-3.9, "i32", -3), (300, "u8", 44), (200, "i8", -56), (0, "bool", False)],
)
def test_casts(value: float, dtype: str, wanted: object) -> None:
    assert cast(value, dtype) == wanted
