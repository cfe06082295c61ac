"""The CPU device's SIMD kernels beside their references; native.mjs runs this in Pyodide."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from engine import ops
from engine.backends.cpu import CpuDevice
from engine.backends.native import QUANTS as KINDS
from engine.backends.native import Native, open_native
from engine.ops import view as views
from engine.ops.attend import attend
from engine.ops.attention import Reach
from engine.ops.gate import ACTS, gate
from engine.ops.kv_layout import KVLayout
from engine.ops.kv_values import write_tokens
from engine.ops.norm import Norm
from engine.ops.rows import normalization
from engine.ops.spans import tensor_of
from engine.ops.state import STEP, StepRecord
from engine.plan import Call, PlanBuilder, Tensor, Traits, Weight
from engine.selftest import passes
from engine.weights.dequantize import dequantize
from engine.weights.quants import QUANTS, block_bytes
from tests.growing import GrowingInRuns
from tests.kernels.cases import numbers, random_blocks, rows, state, weight

# (tokens of the step, capacity of the plan, K, N): odd sizes, one row, one token, tile borders.
SHAPES = [
    (1, 1, 32, 1),
    (1, 1, 96, 37),
    (1, 1, 576, 65),
    (1, 16, 64, 5),
    (4, 4, 64, 2),
    (7, 16, 96, 37),
    (16, 16, 1536, 64),
    (65, 80, 32, 71),
]
# f32 sums in another order; and where activations are rounded to 16 bits per block of 32.
TOLERANCE, ROUNDED = 2e-6, 2e-4
NO_HALVES = 0x7E007E00  # as scales they are not numbers
# Query heads, KV heads, elements of a head, of these the rotated ones, whether as halves.
HEADS = [
    *((9, 3, 64, 0, False), (4, 4, 24, 0, True), (14, 2, 16, 0, True), (2, 1, 8, 0, False)),
    *((4, 1, 256, 0, True), (2, 2, 24, 12, True), (2, 2, 24, 12, False)),
]


def blocks(kind: str, nbytes: int) -> bytes:
    """Any file blocks, with scales around 0.01 of either sign; some are subnormal."""
    scales = np.random.default_rng(nbytes).standard_normal(64) * 0.01
    scales[::17] = 3e-6
    return random_blocks(kind, nbytes // QUANTS[kind].block_bytes, scales)


def whole(kind: str, k: int) -> int:
    """A row length of at least ``k`` in whole blocks."""
    size = QUANTS[kind].block_size
    return -(-k // size) * size


def exact(seed: int, m: int, k: int) -> np.ndarray:
    """Activations (m, k) f32 that rounding to 16 bits leaves as they are: integers times a power
    of two, the same in a block, whose peak is the largest integer."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-32767, 32768, (m, k // 32, 32))
    q[..., seed % 32] = rng.choice([-32767, 32767], (m, k // 32))
    return np.ldexp(q.astype(np.float32), rng.integers(-18, -10, (m, k // 32, 1))).reshape(m, k)


@dataclass(frozen=True)
class Case:
    """Calls that ``build`` appends to a plan of ``capacity`` tokens, run on ``tokens`` of them from
    ``position`` on; ``inputs`` are the contents of state tensors, by name."""

    name: str
    build: Callable[[PlanBuilder], object]
    inputs: Mapping[str, np.ndarray]
    capacity: int = 1
    tokens: int = 1
    position: int = 0
    tolerance: float = TOLERANCE
    limit: int = 1 << 30  # bytes of a matrix, else it is divided
    runs: int = 1  # of each call

    def error(self, native: Native) -> float:
        """The largest difference between kernels and references over all that the calls write,
        relative to the largest value; infinite if a call has no kernel or another number of runs,
        or if a number is not finite."""
        b = PlanBuilder("case", Traits("cpu", max_binding_bytes=self.limit), self.capacity)
        self.build(b)
        step = StepRecord(self.position, self.tokens).pack()
        held: dict[str, Any] = {STEP.name: np.frombuffer(step, np.uint32)}
        return max(self._error(native, call, held) for call in b.build().calls)

    def _error(self, native: Native, call: Call, held: dict[str, Any]) -> float:
        want, got = {}, {}
        for arg, tensor in call.args.items():
            if tensor.name not in held:
                held[tensor.name] = self._initial(tensor, native)
            want[arg] = got[arg] = held[tensor.name]
            if isinstance(tensor, Weight) and native.takes_blocks(tensor):
                want[arg] = dequantize(tensor.quant, _file(tensor)).reshape(tensor.shape)
        got |= {arg: got[arg].copy() for arg in call.writes}
        runs = native.bind(call, got)
        if not runs or len(runs) != self.runs:
            return float("inf")
        call.reference(want)
        for run in runs:
            run()
        return max(_difference(got[arg], want[arg]) for arg in call.writes)

    def _initial(self, tensor: Tensor, native: Native) -> np.ndarray:
        if tensor.name in self.inputs:
            return self.inputs[tensor.name].copy()
        if isinstance(tensor, Weight):
            if native.takes_blocks(tensor):
                return _file(tensor)
            return numbers(len(tensor.name), *tensor.shape)
        return np.zeros(tensor.shape, np.uint32 if tensor.dtype == "u32" else np.float32)


def _file(weight: Weight) -> np.ndarray:
    raw = blocks(weight.quant, block_bytes(weight.quant, weight.shape))
    return np.frombuffer(raw, np.uint8)


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    if want.dtype == np.uint32:
        return 0.0 if np.array_equal(got, want) else float("inf")
    known = ~np.isnan(want)  # in a pool, what nobody wrote
    if not np.isfinite(got[known]).all() or not np.isnan(got[~known]).all():
        return float("inf")
    if not known.any():
        return 0.0
    scale = max(float(np.abs(want[known]).max()), 1e-6)
    return float(np.abs(got[known].astype(np.float64) - want[known]).max()) / scale


def cases() -> Iterator[Case]:
    """All cases."""
    for kind in KINDS:
        for tokens, capacity, least, n in SHAPES:
            k = whole(kind, least)
            yield Case(
                f"linear {kind} {n}x{k}, {tokens} of {capacity} tokens",
                lambda b, k=k, n=n, c=capacity, kind=kind: ops.linear(
                    b, state("x", c, k), weight("w", n, k, quant=kind)
                ),
                {"x": rows(exact(k, tokens, k), capacity)},
                capacity,
                tokens,
            )
        for tokens in (1, 6):
            yield fused(kind, tokens)
            yield stacked(kind, tokens)
            k = whole(kind, 64)
            for act in ("silu", "gelu"):
                yield Case(
                    f"{act}-gated {kind}, {tokens} tokens",
                    lambda b, m=tokens, k=k, kind=kind, act=act: ops.gated_linear(
                        b, state("x", m, k), weight("w", 52, k, quant=kind), act=act
                    ),
                    {"x": exact(1, tokens, k) * 30},  # beyond where e^x overflows
                    tokens,
                    tokens,
                )
        yield Case(
            f"embed {kind}",
            lambda b, kind=kind: ops.embed(
                b,
                state("tokens", 61, dtype="u32"),
                weight("w", 61, whole(kind, 96), quant=kind),
                25.5,
            ),
            {"tokens": np.random.default_rng(0).permutation(61).astype(np.uint32)},
            61,
            60,
        )
    yield Case(
        "linear of zeros",
        lambda b: ops.linear(b, state("x", 1, 64), weight("w", 8, 64, quant="Q4_1")),
        {"x": np.zeros((1, 64), np.float32)},
    )
    yield from pieces()
    for tokens, added in ((1, True), (7, True), (7, False)):
        yield norm(tokens, added)
        yield Case(
            f"gate, {tokens} tokens",
            lambda b, m=tokens, act="gelu" if added else "silu": gate(b, state("x", m, 74), act),
            {"x": numbers(1, tokens, 74)},
            tokens,
            tokens,
        )
    yield from floats()
    yield from graphs()
    for q_heads, kv_heads, dim, rotary, halves in HEADS:
        for tokens, position in ((1, 0), (1, 100), (7, 0), (7, 43)):
            kv = KVLayout(8, 128, q_heads, kv_heads, dim, dim**-0.5, halves, rotary)
            for window in (0, 1, 20, 32):
                yield attention(kv, tokens, position, window)
            yield attention(replace(kv, precision="q8"), tokens, position, 20 if halves else 0)


def fused(kind: str, tokens: int) -> Case:
    """Norm, bias and residual around a linear layer."""
    k = whole(kind, 96)

    def build(b: PlanBuilder) -> None:
        x, residual = state("x", tokens, k), state("residual", tokens, 41)
        norm, w = Norm(weight("gain", k), 1e-5), weight("w", 41, k, quant=kind)
        ops.linear(b, x, w, norm=norm, bias=weight("bias", 41), residual=residual)

    inputs = {"x": numbers(1, tokens, k), "residual": numbers(2, tokens, 41)}
    name = f"fused {kind}, {tokens} tokens"
    return Case(name, build, inputs, tokens, tokens, tolerance=ROUNDED)


def stacked(kind: str, tokens: int) -> Case:
    """Two matrices, quantized differently, that write their parts of the same rows."""
    other = next(k for k in KINDS if k != kind)
    k = whole(kind, 96)

    def build(b: PlanBuilder) -> None:
        x, residual = state("x", tokens, k), state("residual", tokens, 44)
        w = (weight("w", 41, k, quant=kind), weight("v", 3, k, quant=other))
        ops.linear(b, x, w, bias=weight("bias", 44), residual=residual)

    inputs = {"x": exact(1, tokens, k), "residual": numbers(2, tokens, 44)}
    return Case(f"stacked {kind}, {tokens} tokens", build, inputs, tokens, tokens)


def norm(tokens: int, added: bool) -> Case:
    """A norm on its own, added to a residual or not."""

    def build(b: PlanBuilder) -> None:
        residual = state("residual", 8, 96) if added else None
        ops.rmsnorm(b, state("x", 8, 96), weight("gain", 96), 1e-5, residual)

    inputs = {"x": rows(numbers(1, tokens, 96), 8), "residual": rows(numbers(2, tokens, 96), 8)}
    return Case(f"norm, {tokens} tokens, {added}", build, inputs, 8, tokens)


def floats() -> Iterator[Case]:
    """Linear layers on matrices of f32, and what is around them."""
    for tokens, capacity, k, n in SHAPES:
        yield Case(
            f"linear F32 {n}x{k}, {tokens} of {capacity} tokens",
            lambda b, k=k, n=n, c=capacity: ops.linear(b, state("x", c, k), weight("w", n, k)),
            {"x": rows(numbers(k, tokens, k), capacity)},
            capacity,
            tokens,
        )
    for tokens in (1, 6):
        yield replace(fused("F32", tokens), tolerance=TOLERANCE)
        yield stacked("F32", tokens)
        for kind, act in product(("F32", "Q8_0"), ACTS):
            # Beyond where e^x overflows, and where activations are curved.
            x = {"x": exact(1, tokens, 64) * np.float32(30 if tokens == 1 else 1 / 32)}
            yield Case(
                f"{act} after {kind}, {tokens} tokens",
                lambda b, m=tokens, kind=kind, act=act: ops.linear(
                    *(b, state("x", m, 64), weight("w", 41, 64, quant=kind)),
                    bias=weight("bias", 41),
                    act=act,
                ),
                *(x, tokens, tokens),
            )
            yield Case(
                f"gated by {act} {kind}, {tokens} tokens, with a norm",
                lambda b, m=tokens, kind=kind, act=act: ops.gated_linear(
                    *(b, state("x", m, 64), weight("w", 52, 64, quant=kind)),
                    norm=Norm(weight("gain", 64), 1e-5),
                    act=act,
                ),
                *(x, tokens, tokens),
                tolerance=TOLERANCE if kind == "F32" else ROUNDED,
            )
    for kind in ("F32", "Q8_0"):
        yield in_runs(kind)


def in_runs(kind: str) -> Case:
    """A call that is long, so that it is several runs, the last of which has no token."""

    def build(b: PlanBuilder) -> None:
        w, residual = weight("w", 640, 512, quant=kind), state("residual", 300, 640)
        ops.linear(b, state("x", 300, 512), w, bias=weight("bias", 640), residual=residual)

    inputs = {"x": rows(exact(1, 200, 512), 300), "residual": rows(numbers(2, 200, 640), 300)}
    return Case(f"linear {kind} in runs", build, inputs, 300, 200, runs=4)


def graphs() -> Iterator[Case]:
    """What graphs of encoders have beside products."""
    for centred, biased in product((True, False), (True, False)):

        def build(b: PlanBuilder, centred: bool = centred, biased: bool = biased) -> None:
            bias = views.whole(weight("bias", 36)) if biased else None
            x, gain = views.whole(state("x", 7, 36)), views.whole(weight("gain", 36))
            normalization(b, x, 36, gain, bias, 1e-5, centred)

        x = {"x": numbers(1, 7, 36) + np.float32(3)}
        yield Case(f"normalization, centred {centred}, bias {biased}", build, x)
    for m, n, width, values in ((1, 1, 4, 4), (5, 7, 8, 24), (16, 16, 32, 32), (67, 131, 64, 12)):
        for mask in ("", "by key", "by query", "guarded", "by head"):
            yield attending(m, n, width, values, mask)
    yield replace(attending(300, 300, 64, 64, "by key"), runs=3)


def attending(m: int, n: int, width: int, values: int, mask: str) -> Case:
    """Attention of a graph, 2 texts and 3 heads, over rows that hold Q, or K and V. By key, the
    first text is short and the second empty; by query and guarded, some see nothing; by head, the
    elements of the mask do not lie side by side."""
    row = 3 * max(width, values)
    shape = {"by key": (2, 1, 1, n), "by head": (1, n, 3, m)}.get(mask, (1, 1, m, n))
    added = numbers(4, *shape)
    if mask == "by key":
        added[0, ..., n // 2 + 1 :] = added[1] = np.finfo(np.float32).min
    if mask in ("by query", "guarded"):
        added = np.where(numbers(5, *shape) > 0, added, -np.inf).astype(np.float32)
        added[:, :, ::5] = -np.inf

    def build(b: PlanBuilder) -> None:
        def part(name: str, rows: int, size: int, at: int) -> views.View:
            view = views.whole(state(name, 2, rows, 3, row))
            return view.with_layout(view.layout.permuted((0, 2, 1, 3)).sliced(3, at, 1, size))

        q, k = part("q", m, width, 0), part("kv", n, width, row - width)
        v = part("kv", n, values, 0)
        given = views.whole(state("mask", *added.shape)) if mask else None
        if given and mask == "by head":
            given = given.with_layout(given.layout.permuted((0, 2, 3, 1)))
        attend(b, q, k, v, given, width**-0.5, mask == "guarded")

    inputs = {"q": numbers(1, 2, m, 3, row), "kv": numbers(2, 2, n, 3, row), "mask": added}
    name = f"attention of a graph, {m} to {n}, {width} and {values} elements, mask {mask or 'none'}"
    return Case(name, build, inputs)


def pieces() -> Iterator[Case]:
    """Matrices larger than a device takes at once, in two or three pieces."""
    ids = {"tokens": np.random.default_rng(0).permutation(70).astype(np.uint32)}
    x, limit = {"x": exact(1, 6, 64)}, 32 * 64
    yield Case(
        "embed in pieces",
        lambda b: ops.embed(b, state("tokens", 70, dtype="u32"), weight("w", 70, 64, quant="Q8_0")),
        *(ids, 70, 70),
        limit=limit,
    )
    yield Case(
        "linear in pieces",
        lambda b: ops.linear(b, state("x", 6, 64), weight("w", 70, 64, quant="Q8_0")),
        *(x, 6, 6),
        limit=limit,
    )
    yield Case(
        "gated in pieces",
        lambda b: ops.gated_linear(b, state("x", 6, 64), weight("w", 2 * 41, 64, quant="Q4_0")),
        *(x, 6, 6),
        limit=limit,
    )


def attention(kv: KVLayout, tokens: int, position: int, window: int) -> Case:
    """Attention over a scattered block table; what lies behind the sequence, or before any window,
    is not a number."""
    qkv = numbers(1, tokens, (kv.q_heads + 2 * kv.kv_heads) * kv.head_dim)
    table = np.random.default_rng(2).permutation(kv.max_blocks).astype(np.uint32)
    inputs = {"qkv": qkv, kv.block_table.name: table, "own": turns(kv)}
    for which in "kv":
        tensor = kv.pool(which, 0)
        pool = np.full(tensor.shape, np.nan, np.float32)
        pool = pool if kv.precision == "f16" else np.full(tensor.shape, NO_HALVES, np.uint32)
        for i in range(max(0, position + 1 - window) if window else 0, position):
            write_tokens(pool, table[i // 16], i % 16, numbers(i, kv.kv_heads, kv.head_dim))
        inputs[tensor.name] = pool
    return Case(
        f"attention of {kv.q_heads}/{kv.kv_heads} heads of {kv.head_dim}, {kv.rotary} rotated, as"
        f" halves {kv.halves}, {tokens} at {position}, window {window}, {kv.precision}",
        lambda b: tensor_of(
            b, ops.attention(b, state("qkv", *qkv.shape), kv, 0, Reach(window, "own"))
        ),
        inputs,
        tokens,
        tokens,
        position,
    )


def turns(kv: KVLayout) -> np.ndarray:
    """Any numbers as cosines and sines; 1 and 0 where nothing is rotated."""
    table = numbers(3, *kv.rope().shape)
    table[:, kv.rotated // 2 :] = (1, 0)
    return table


async def main() -> str:
    """JSON: the errors by case, and whether a device with kernels passes the self-test."""
    native = open_native()
    assert native
    errors = {case.name: case.error(native) for case in cases()}
    devices = [CpuDevice(16, native), CpuDevice(5, native), GrowingInRuns(16, native)]
    golden = [await passes(device) for device in devices]
    return json.dumps({"errors": errors, "golden": golden})
