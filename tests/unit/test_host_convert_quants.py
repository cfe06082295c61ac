"""Types of weights: which tensor gets which, and the quantizers of K types."""

from __future__ import annotations

from itertools import pairwise

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.host.convert import command, kquants, quants
from engine.host.convert.model import Tensor
from engine.host.errors import HostError

K_TYPES = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)


def tensor(values: np.ndarray, name: str = "blk.0.ffn_down.weight") -> Tensor:
    return Tensor(name, values.shape, Kind.F32, lambda first, last: values[first:last])


def of_shape(*shape: int, name: str = "blk.0.ffn_down.weight") -> Tensor:
    return tensor(np.zeros(shape, np.float32), name)


def weights(seed: int = 0) -> np.ndarray:
    """(64, 1024): normal, with outliers in some rows, all positive in others."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((64, 1024)) * 0.02
    values[40:50] = rng.standard_t(3, (10, 1024)) * 0.02
    values[50:] = np.abs(values[50:])
    return values.astype(np.float32)


def decoded(values: np.ndarray, kind: Kind) -> np.ndarray:
    data = np.concatenate(list(quants.packed(tensor(values), kind)))
    block, size = gguf.GGML_QUANT_SIZES[kind]
    assert data.nbytes == quants.nbytes(tensor(values), kind) == values.size // block * size
    return gguf.quants.dequantize(data.reshape(len(values), -1), kind)


def error(values: np.ndarray, kind: Kind) -> float:
    """Root of the mean square, relative to the weights'."""
    difference = decoded(values, kind).astype(np.float64) - values
    return float(np.sqrt((difference**2).mean() / (values.astype(np.float64) ** 2).mean()))


@pytest.mark.parametrize("rows", [slice(0, 40), slice(40, 50), slice(50, 64)])
def test_more_bits_lose_less(rows: slice) -> None:
    values = weights()[rows]
    ranked = [Kind.Q8_0, Kind.Q6_K, Kind.Q5_K, Kind.Q4_K]
    losses = [error(values, kind) for kind in ranked]
    assert losses == sorted(losses)
    assert all(1.15 * less < more for less, more in pairwise(losses))


@pytest.mark.parametrize(
    ("kind", "plain"), [(Kind.Q4_K, Kind.Q4_1), (Kind.Q5_K, Kind.Q5_1), (Kind.Q4_K, Kind.Q4_0)]
)
def test_k_types_lose_less_than_plain_ones_of_as_many_bits(kind: Kind, plain: Kind) -> None:
    values = weights()[:40]
    assert error(values, kind) < 0.96 * error(values, plain)


# A little above what the search for scales reaches, and below what one try does.
@pytest.mark.parametrize(
    ("kind", "bound"), [(Kind.Q4_K, 0.0725), (Kind.Q5_K, 0.0365), (Kind.Q6_K, 0.018)]
)
def test_the_loss_of_normal_weights(kind: Kind, bound: float) -> None:
    assert error(weights(5)[:40], kind) < bound


@pytest.mark.parametrize("kind", K_TYPES)
def test_each_weight_has_the_nearest_level(kind: Kind) -> None:
    """A level more or less, with the scales as they are stored, is never nearer."""
    values = weights(1)
    near = decoded(values, kind)
    data = np.concatenate(list(quants.packed(tensor(values), kind)))
    for step in (1, -1):
        other = gguf.quants.dequantize(_moved(data, kind, step), kind)
        changed = other != near
        assert changed.mean() > 0.5
        assert (np.abs(near - values) <= np.abs(other - values) + 1e-7)[changed].all()


def _moved(data: np.ndarray, kind: Kind, step: int) -> np.ndarray:
    """Blocks with every level that has room in its low 4 bits moved by `step`."""
    moved = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]).copy()
    start = {Kind.Q4_K: 16, Kind.Q5_K: 48, Kind.Q6_K: 0}[kind]
    part = moved[:, start : start + 128]
    low, high = (part & 15).astype(int), (part >> 4).astype(int)
    limit = 15 if step > 0 else 0
    low, high = (np.where(q == limit, q, q + step) for q in (low, high))
    part[:] = low | high << 4
    return moved.reshape(data.shape)


@pytest.mark.parametrize("kind", K_TYPES)
def test_what_a_block_holds_exactly_stays(kind: Kind) -> None:
    bits = {Kind.Q4_K: 4, Kind.Q5_K: 5, Kind.Q6_K: 6}[kind]
    steps = np.arange(256) * 7 % 2**bits
    low = 2 ** (bits - 1) if kind == Kind.Q6_K else 0
    # Each group has a level at the far end, of which its scale is made.
    values = ((steps - low) * 0.0078125).astype(np.float32).reshape(1, 256)
    values.reshape(-1, 16)[:, 0] = (-low if low else 2**bits - 1) * 0.0078125
    if kind != Kind.Q6_K:
        values.reshape(-1, 16)[:, 1] = 0
    assert np.abs(decoded(values, kind) - values).max() < 0.0078125 / 50


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.25, 1e-8, -1e-30, 1e-40, 30000.0])
def test_constant_and_extreme_weights(kind: Kind, value: float) -> None:
    values = np.full((2, 256), value, np.float32)
    result = decoded(values, kind)
    assert np.isfinite(result).all()
    if abs(value) > 1e-4 or value == 0:
        assert np.allclose(result, values, rtol=0.01, atol=0)
    else:  # below what a half can say
        assert np.abs(result).max() < 1e-4


@pytest.mark.parametrize("kind", K_TYPES)
def test_weights_far_from_zero(kind: Kind) -> None:
    """There is no offset below 0, so their levels begin at 0."""
    values = (1 + 0.05 * weights(2)[:40] / 0.02).astype(np.float32)
    assert error(values, kind) < {Kind.Q4_K: 0.03, Kind.Q5_K: 0.016, Kind.Q6_K: 0.016}[kind]


@pytest.mark.parametrize("kind", K_TYPES)
def test_one_large_weight_among_zeros(kind: Kind) -> None:
    for value in (3.0, -3.0):
        values = np.zeros((1, 256), np.float32)
        values[0, 77] = value
        result = decoded(values, kind)
        assert abs(result[0, 77] - value) < 0.02
        assert np.abs(np.delete(result, 77)).max() < 0.01


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, *K_TYPES])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_rows_do_not_see_each_other(kind: Kind, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decoded(weights(), kind)
    monkeypatch.setattr(quants, "CHUNK", rows * 1024)
    assert np.array_equal(decoded(weights(), kind), whole)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q4_0, Kind.Q6_K])
def test_weights_that_are_no_numbers_are_named(kind: Kind, value: float) -> None:
    values = np.zeros((1, 256), np.float32)
    values[0, 3] = value
    with pytest.raises(HostError, match=r"blk\.0\.ffn_down\.weight"):
        decoded(values, kind)


def test_weights_too_large_for_f16_are_named() -> None:
    values = np.full((1, 256), 1e6, np.float32)
    with pytest.raises(HostError, match="choose bf16 or f32"):
        decoded(values, Kind.F16)
    assert np.allclose(decoded(values, Kind.BF16), values, rtol=0.005)


@pytest.mark.parametrize(
    ("quant", "columns", "expected"),
    [
        ("q4_k", 512, Kind.Q4_K),
        ("q4_k", 288, Kind.Q5_0),
        ("q5_k", 288, Kind.Q5_1),
        ("q6_k", 288, Kind.Q8_0),
        ("q4_k", 40, Kind.F16),
        ("q8_0", 40, Kind.F16),
        ("q4_0", 96, Kind.Q4_0),
        ("bf16", 40, Kind.BF16),
        (None, 40, Kind.F32),
    ],
)
def test_types_of_matrices(quant: str | None, columns: int, expected: Kind) -> None:
    assert quants.target(of_shape(8, columns), quant) == expected


@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight"])
def test_embedding_and_output_are_more_precise(name: str) -> None:
    for quant, expected in {"q4_k": Kind.Q6_K, "q5_k": Kind.Q6_K, "q4_0": Kind.Q8_0}.items():
        assert quants.target(of_shape(8, 512, name=name), quant) == expected
    assert quants.target(of_shape(8, 288, name=name), "q4_k") == Kind.Q8_0


@pytest.mark.parametrize("quant", quants.QUANTS)
def test_vectors_stay(quant: str) -> None:
    assert quants.target(of_shape(512, name="blk.0.attn_norm.weight"), quant) == Kind.F32


def test_the_command_offers_what_there_is() -> None:
    assert tuple(quants.QUANTS) == command.QUANTS
    assert set(kquants.PACKERS) == set(K_TYPES)
