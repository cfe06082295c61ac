"""Linear layers, norms and embeddings against their references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine import ops
from engine.ops.gate import Act
from engine.ops.norm import Norm
from engine.ops.quantize import quantize
from engine.ops.state import StepRecord
from engine.plan import PlanBuilder
from engine.weights.quants import QUANTS, make_weight
from tests.kernels.cases import DEVICES, HALVES, assert_close, builder, numbers, rows, state, weight
from tests.kernels.harness import Case, Harness

BLOCKS_OF_256 = [name for name, q in QUANTS.items() if q.block_size == 256]
OTHERS = [name for name in QUANTS if name not in BLOCKS_OF_256]
# (tokens of the step, capacity of the plan, K, N): odd sizes, one row, one token, tile borders.
SHAPES = [
    (1, 1, 32, 1),
    (1, 1, 96, 37),
    (1, 1, 576, 65),
    (1, 16, 64, 5),
    (7, 16, 96, 37),
    (16, 16, 64, 64),
    (65, 80, 32, 70),
]
# f32 sums in another order; the reference of the q8 kernels starts from the same 8-bit values.
TOLERANCE = 2e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("quant", OTHERS)
def test_linear(harness: Harness, device: str, quant: str) -> None:
    for tokens, capacity, k, n in SHAPES:
        b = builder(device, capacity)
        x, w = state("x", capacity, k), weight("w", n, k, quant=quant)
        y = ops.linear(b, x, w)
        inputs = {"x": rows(numbers(k, tokens, k), capacity)}
        case = Case(b.build(), inputs, {"w": numbers(n, n, k)}, StepRecord(3, tokens))
        (got,) = harness.run(case, [y])
        assert_close(got[:tokens], case.reference()[y.name][:tokens], TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("quant", BLOCKS_OF_256)
@pytest.mark.parametrize(("tokens", "k", "n"), [(1, 512, 37), (7, 768, 37), (65, 256, 70)])
def test_linear_on_blocks_of_256(
    harness: Harness, device: str, quant: str, tokens: int, k: int, n: int
) -> None:
    b = builder(device, tokens)
    y = ops.linear(b, state("x", tokens, k), weight("w", n, k, quant=quant))
    weights = {"w": numbers(2, n, k)}
    case = Case(b.build(), {"x": numbers(1, tokens, k)}, weights, StepRecord(0, tokens))
    (got,) = harness.run(case, [y])
    assert_close(got, case.reference()[y.name], TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, 6])
def test_everything_fused(harness: Harness, device: str, tokens: int) -> None:
    k, n = 96, 40
    b = builder(device, tokens)
    x, residual = state("x", tokens, k), state("residual", tokens, n)
    norm = Norm(weight("gain", k), 1e-5)
    bias = weight("bias", n)
    y = ops.linear(b, x, weight("w", n, k, quant="Q4_1"), norm=norm, bias=bias, residual=residual)
    inputs = {"x": numbers(1, tokens, k), "residual": numbers(2, tokens, n)}
    weights = {"w": numbers(3, n, k), "gain": numbers(4, k), "bias": numbers(5, n)}
    case = Case(b.build(), inputs, weights, StepRecord(0, tokens))
    (got,) = harness.run(case, [y])
    # Rounding activations to integers can fall to either side of a half.
    tolerance = {"f32": 5e-6, "q16": 1e-4, "q8": 1e-2}[DEVICES[device].activations]
    assert_close(got, case.reference()[y.name], tolerance)


@pytest.mark.parametrize("device", ["plain", "workgroup"])
@pytest.mark.parametrize(("tokens", "n"), [(1, 40), (70, 130)])
def test_plain_weights(harness: Harness, device: str, tokens: int, n: int) -> None:
    """Weights in single precision, with a bias and with what follows it."""
    k = 64
    b = builder(device, tokens)
    x, w, bias = state("x", tokens, k), weight("w", n, k), weight("bias", n)
    residual = state("residual", tokens, n)
    acts: tuple[Act, ...] = ("silu", "gelu", "gelu_erf")
    found = [
        ops.linear(b, x, w, into=state("plain", tokens, n)),
        ops.linear(b, x, w, bias=bias, residual=residual, into=state("sum", tokens, n)),
        *(ops.linear(b, x, w, bias=bias, act=act, into=state(act, tokens, n)) for act in acts),
    ]
    inputs = {"x": numbers(1, tokens, k) * 0.2, "residual": numbers(2, tokens, n)}
    weights = {"w": numbers(3, n, k) * 0.2, "bias": numbers(4, n)}
    case = Case(b.build(), inputs, weights, StepRecord(0, tokens))
    wanted = case.reference()
    product = inputs["x"].astype(np.float64) @ weights["w"].T.astype(np.float64)
    assert_close(wanted["sum"], product + weights["bias"] + inputs["residual"], 1e-5)
    for got, tensor in zip(harness.run(case, found), found, strict=True):
        assert_close(got, wanted[tensor.name], 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_gated_linear(harness: Harness, device: str, tokens: int, act: Act) -> None:
    k, f = 64, 26
    b = builder(device, tokens)
    y = ops.gated_linear(b, state("x", tokens, k), weight("w", 2 * f, k, quant="Q4_1"), act=act)
    inputs = {"x": numbers(1, tokens, k) * 0.2}
    case = Case(b.build(), inputs, {"w": numbers(2, 2 * f, k) * 0.2}, StepRecord(0, tokens))
    (got,) = harness.run(case, [y])
    assert_close(got, case.reference()[y.name], 1e-5)


@pytest.mark.parametrize("device", ["plain", "plain-q16", "workgroup", "workgroup-q16"])
@pytest.mark.parametrize("tokens", [1, 6])
def test_a_gate_of_two_quantizations(harness: Harness, device: str, tokens: int) -> None:
    """Two products and a gate compute what two products of their own do."""
    k, f = 64, 70
    b = builder(device, 6)
    x = state("x", 6, k)
    w = (weight("g", f, k, quant="Q4_1"), weight("u", f, k, quant="Q8_0"))
    apart = [ops.linear(b, x, part, into=state(part.name + "x", 6, f)) for part in w]
    y = ops.gated_linear(b, x, w, act="gelu")
    inputs = {"x": rows(numbers(1, tokens, k) * 0.2, 6)}
    weights = {"g": numbers(2, f, k) * 0.2, "u": numbers(3, f, k) * 0.2}
    case = Case(b.build(), inputs, weights, StepRecord(0, tokens))
    got, gate, up = (v[:tokens].astype(np.float64) for v in harness.run(case, [y, *apart]))
    root = np.sqrt(2 / np.pi)
    want = gate / 2 * (1 + np.tanh(root * (gate + 0.044715 * gate**3))) * up
    assert_close(got, want, 1e-5)
    assert_close(case.reference()[y.name][:tokens].astype(np.float64), want, 1e-4)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("device", ["plain", "workgroup"])
@pytest.mark.parametrize(("tokens", "k"), [(1, 32), (5, 576), (3, 2048)])
def test_rmsnorm(harness: Harness, device: str, tokens: int, k: int, added: bool) -> None:
    b = builder(device, 8)
    residual = state("residual", 8, k) if added else None
    y = ops.rmsnorm(b, state("x", 8, k), weight("gain", k), 1e-5, residual)
    x, gain, before = numbers(1, tokens, k), numbers(2, k), numbers(3, tokens, k)
    inputs = {"x": rows(x, 8), "residual": rows(before, 8)}
    case = Case(b.build(), inputs, {"gain": gain}, StepRecord(0, tokens))
    (got,) = harness.run(case, [y])
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * gain
    want = want + before if added else want
    assert_close(got[:tokens], want, TOLERANCE)
    assert_close(case.reference()[y.name][:tokens], want, TOLERANCE)


@pytest.mark.parametrize("bits", [8, 16])
def test_quantize_activations(harness: Harness, bits: int) -> None:
    b = builder(f"plain-q{bits}", 8)
    quants, scales = quantize(b, state("x", 8, 96))
    x = numbers(1, 5, 96)
    x[2, 32:64] = 0  # a block of zeros has no scale
    case = Case(b.build(), {"x": rows(x, 8)}, {}, StepRecord(0, 5))
    got_quants, got_scales = harness.run(case, [quants, scales])
    bytes_ = got_quants[:5].view(np.int8).astype(np.int32).reshape(5, 3, -1, 32)
    q = bytes_[:, :, 0] if bits == 8 else bytes_[:, :, 0] * 128 + bytes_[:, :, 1]
    values = q * got_scales[:5, :, :1]
    largest = 127 if bits == 8 else 127 * 128
    step = np.abs(x.reshape(5, 3, 32)).max(axis=-1, keepdims=True) / largest
    assert (np.abs(values - x.reshape(5, 3, 32)) <= step * 0.51).all()
    np.testing.assert_allclose(got_scales[:5, :, 1], values.sum(axis=-1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("quant", QUANTS)
def test_embedding_is_exact(harness: Harness, quant: str) -> None:
    """Also the proof that repacking loses no bit, whatever the shard borders cut."""
    vocab, k = 61, 256 if quant in BLOCKS_OF_256 else 96
    for shard_size in (64, 1000, 4096, 1 << 20):
        b = builder("plain", vocab)
        tokens = state("tokens", vocab, dtype="u32")
        y = ops.embed(b, tokens, weight("w", vocab, k, quant=quant), 25.5)
        ids = np.random.default_rng(0).permutation(vocab).astype(np.uint32)
        weights = {"w": numbers(1, vocab, k)}
        case = Case(b.build(), {"tokens": ids}, weights, StepRecord(0, vocab), shard_size)
        (got,) = harness.run(case, [y])
        # d * q + m may be fused on the device: one rounding less than in the reference.
        np.testing.assert_allclose(got, case.reference()[y.name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("quant", HALVES)
def test_scales_of_any_size(harness: Harness, quant: str) -> None:
    """Zeros, subnormal and large halves are repacked as they are."""
    vocab, k = 61, 256
    b = builder("plain", vocab)
    y = ops.embed(b, state("tokens", vocab, dtype="u32"), weight("w", vocab, k, quant=quant))
    inputs = {"tokens": np.arange(vocab, dtype=np.uint32)}
    scales = (0.0, -0.0, 6e-8, -6e-8, 3e-6, 0.01, -1.5, 8000, -8000)
    weights = {"w": np.empty((vocab, k), np.float32)}
    case = Case(b.build(), inputs, weights, StepRecord(0, vocab), scales=scales)
    (got,) = harness.run(case, [y])
    got, want = got.reshape(-1, 32), case.reference()[y.name].reshape(-1, 32)
    assert (np.abs(got - want) <= 1e-6 * np.abs(want).max(axis=1, keepdims=True)).all()


def test_stacked_weights(harness: Harness) -> None:
    b = builder("plain", 8)
    w = make_weight("stack", (64,), "Q8_0", {"q": 3, "k": 5, "v": 2})
    y = ops.linear(b, state("x", 8, 64), w)
    weights = {"q": numbers(1, 3, 64), "k": numbers(2, 5, 64), "v": numbers(3, 2, 64)}
    case = Case(b.build(), {"x": numbers(4, 8, 64)}, weights, StepRecord(0, 8), 200)
    (got,) = harness.run(case, [y])
    assert_close(got, case.reference()[y.name], TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, 6])
def test_matrices_larger_than_a_binding(harness: Harness, device: str, tokens: int) -> None:
    """In pieces of 32 rows, all ops compute what they do on one matrix."""
    k, n, f = 64, 70, 41
    outputs = []
    for limit in (32 * k, 1 << 27):
        b = PlanBuilder("case", replace(DEVICES[device], max_binding_bytes=limit), tokens)
        ids = state("tokens", tokens, dtype="u32")
        w, gate_up = weight("w", n, k, quant="Q8_0"), weight("g", 2 * f, k, quant="Q8_0")
        bias, residual = weight("bias", n), state("residual", tokens, n)
        x = ops.embed(b, ids, w)
        norm = Norm(weight("gain", k), 1e-5)
        biased, added = state("biased", tokens, n), state("added", tokens, n)
        ops.linear(b, x, w, norm=norm, bias=bias, into=biased)
        ops.linear(b, x, w, residual=residual, into=added)
        gated = ops.gated_linear(b, x, gate_up, norm=norm)
        inputs = {
            "tokens": np.array([n - 1, 0, 31, 32, 63, 64][:tokens], np.uint32),
            "residual": numbers(2, tokens, n),
        }
        weights = {"w": numbers(3, n, k), "g": numbers(4, 2 * f, k) * 0.2}
        weights |= {"gain": numbers(5, k), "bias": numbers(6, n)}
        case = Case(b.build(), inputs, weights, StepRecord(0, tokens), 1000)
        pieces = [c for c in case.plan.calls if c.op == "linear"]
        assert len(pieces) == (9 if limit < 1 << 20 else 3)
        outputs.append(harness.run(case, [biased, added, gated]))
    for got, want in zip(*outputs, strict=True):
        assert_close(got, want, TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("tokens", "capacity", "k", "kinds"),
    [
        (1, 1, 96, ("Q4_1", "Q8_0", "F16")),
        (37, 40, 96, ("Q4_1", "Q8_0", "F16")),
        (1, 1, 256, ("Q4_K", "Q6_K")),
        (6, 8, 256, ("Q4_K", "Q6_K")),
    ],
)
def test_a_stack_of_different_quantizations(
    harness: Harness, device: str, tokens: int, capacity: int, k: int, kinds: tuple[str, ...]
) -> None:
    b = builder(device, capacity)
    heights = (70, 9, 33)[: len(kinds)]
    w = tuple(
        weight(f"w{i}", height, k, quant=kind)
        for i, (height, kind) in enumerate(zip(heights, kinds, strict=True))
    )
    x, norm, n = state("x", capacity, k), Norm(weight("gain", k), 1e-5), sum(heights)
    residual = state("residual", capacity, n)
    outputs = [state(name, capacity, n) for name in ("first", "second")]
    ops.linear(b, x, w, norm=norm, bias=weight("bias", n), into=outputs[0])
    ops.linear(b, x, w, residual=residual, into=outputs[1])
    weights = {f"w{i}": numbers(i, height, k) for i, height in enumerate(heights)}
    weights |= {"gain": numbers(7, k), "bias": numbers(8, n)}
    inputs = {
        "x": rows(numbers(9, tokens, k), capacity),
        "residual": rows(numbers(10, tokens, n), capacity),
    }
    case = Case(b.build(), inputs, weights, StepRecord(0, tokens))
    wanted = case.reference()
    # Rounding activations to integers can fall to either side of a half.
    tolerance = {"f32": 5e-6, "q16": 1e-4, "q8": 1e-2}[DEVICES[device].activations]
    for y, got in zip(outputs, harness.run(case, outputs), strict=True):
        assert_close(got[:tokens], wanted[y.name][:tokens], tolerance)
