"""Matrices larger than an adapter takes at once are divided by rows, and compute the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import loader, ops, selftest
from engine.backends.base import weights_of
from engine.backends.cpu import CpuDevice
from engine.backends.null import NullDevice
from engine.config import LoadConfig
from engine.engine import Engine
from engine.models import open_model
from engine.models.plans import DECODE, HEAD, PREFILL, build_plans
from engine.plan import Plan, PlanBuilder, Traits, Weight
from engine.weights.gguf import read_header
from engine.weights.loading import shard_jobs
from engine.weights.quants import QUANTS, make_weight, split
from tests.kernels.cases import numbers, state, weight
from tests.kernels.harness import file_of, oracle, quantize
from tests.native import NativeHost, unchecked
from tests.tiny import TINY

LIMIT = 4000  # bytes; the tiny models have matrices of ten times as many
SMALL = {
    "gpu": Traits("webgpu", subgroup=32, max_binding_bytes=LIMIT),
    "buffers": Traits("webgpu", max_buffer_bytes=LIMIT),
    "software": Traits("webgpu", barriers=False, activations="q16", max_binding_bytes=LIMIT),
}


def plans_of(traits: Traits, name: str) -> dict[str, Plan]:
    data = TINY.with_name(f"{name}.gguf").read_bytes()
    model = open_model(read_header(data, len(data)))
    return build_plans(model, traits, model.config.kv_layout(8, 128))


def largest(weights: list[Weight]) -> int:
    return max(plane.nbytes for w in weights for plane in w.planes)


def test_what_fits_stays_whole() -> None:
    w = weight("w", 100, 256, quant="Q4_0")
    assert split(w, 100 * 128) == (w,)
    assert split(w, 1000) == (w,), "16 rows take more"


def test_pieces_exactly() -> None:
    w = make_weight("w", (64,), "Q8_0", {"q": 40, "k": 50})
    first, second = split(w, 64 * 64)
    assert (first.name, first.shape, first.sources) == ("w.0", (48, 64), ("q", "k"))
    assert first.rows == (range(40), range(8))
    assert (second.name, second.shape, second.sources) == ("w.1", (42, 64), ("k",))
    assert second.rows == (range(8, 50),)


def test_a_piece_of_two_parts_has_the_same_rows_of_both() -> None:
    apart = make_weight("w", (64,), "Q8_0", {"gate": 50, "up": 50})
    first, second = split(apart, 64 * 64, 2)
    assert first.rows == (range(32), range(32))
    assert (second.shape, second.sources) == ((36, 64), ("gate", "up"))
    assert second.rows == (range(32, 50), range(32, 50))
    together = make_weight("w", (64,), "Q8_0", {"both": 100})
    first, second = split(together, 64 * 64, 2)
    assert (first.sources, first.rows) == (("both", "both"), (range(32), range(50, 82)))
    assert (second.sources, second.rows) == (("both", "both"), (range(32, 50), range(82, 100)))


@pytest.mark.parametrize("name", QUANTS)
@pytest.mark.parametrize("parts", [1, 2])
def test_no_piece_is_too_large_and_no_row_is_left_out(name: str, parts: int) -> None:
    w = weight("w", 2 * 1001, 256, quant=name)
    limit = max(p.nbytes for p in w.planes) // 5
    pieces = split(w, limit, parts)
    assert 5 < len(pieces) < 8
    assert largest(list(pieces)) <= limit
    assert sorted(i for p in pieces for rows in p.rows for i in rows) == list(range(2 * 1001))
    assert split(w, limit, parts) == pieces


@pytest.mark.parametrize("device", SMALL)
@pytest.mark.parametrize("name", ["tiny", "tiny_untied", "tiny_qwen2", "tiny_qwen3"])
def test_every_row_of_a_model_is_in_one_piece(device: str, name: str) -> None:
    whole = weights_of(plans_of(Traits("webgpu"), name).values())
    pieces = weights_of(plans_of(SMALL[device], name).values())
    assert largest(whole) > 9 * LIMIT
    assert largest(pieces) <= LIMIT
    assert _rows(pieces) == _rows(whole)
    assert set(_rows(pieces).values()) == {1}


def _rows(weights: list[Weight]) -> Counter[tuple[str, int]]:
    """How often a row of a source is on the device."""
    each = [zip(w.sources, w.rows, strict=True) for w in weights]
    return Counter((source, i) for taken in each for source, rows in taken for i in rows)


def test_embedding_and_output_share_their_pieces() -> None:
    plans = plans_of(SMALL["gpu"], "tiny")
    embedded = [c.args["w"] for c in plans[PREFILL].calls if c.op == "embed"]
    assert len(embedded) == 13
    assert [c.args["w"] for c in plans[HEAD].calls] == embedded
    assert [c.args["w"] for c in plans[DECODE].calls if c.op == "embed"] == embedded


def test_products_of_pieces_lie_below_each_other() -> None:
    b = PlanBuilder("case", SMALL["gpu"])
    ops.gated_linear(b, state("x", 1, 64), weight("w", 320, 64, quant="Q4_0"))
    ops.linear(b, state("x", 1, 64), weight("v", 100, 64, quant="Q8_0"))
    firsts = [call.shader.overrides["FIRST"] for call in b.build().calls if call.shader]
    assert firsts == [0, 48, 96, 144, 0, 48, 96]


def test_a_model_in_pieces_gives_its_golden_ids() -> None:
    device = CpuDevice(16)
    device.traits = replace(device.traits, max_binding_bytes=LIMIT)
    assert asyncio.run(selftest.passes(device))


def test_a_load_makes_no_buffer_larger_than_the_adapter_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader, "right_plans", unchecked)

    async def run() -> NullDevice:
        device = NullDevice(replace(SMALL["gpu"], max_binding_bytes=16384, chunk=16))
        engine = Engine(NativeHost(TINY, device=device))
        await engine.load(LoadConfig(context=128, tune=False), lambda *_: None)
        return device

    tensors = list(asyncio.run(run()).tensors.values())
    weights = [t for t in tensors if isinstance(t, Weight)]
    assert len([w for w in weights if w.sources == ("token_embd.weight",)]) == 3
    assert largest(weights) <= 16384


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(QUANTS)),
    st.lists(st.integers(1, 90), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(130, 3000).map(lambda n: n * 4),
)
def test_pieces_get_their_rows(kind: str, rows: list[int], most: int, shard_size: int) -> None:
    """Whatever the borders of shards, sources and pieces cut."""
    values = {f"t{i}": numbers(i, count, 256) for i, count in enumerate(rows)}
    tensors = {n: (kind, quantize(v, kind)) for n, v in values.items()}
    index, data = file_of(tensors, {n: v.shape for n, v in values.items()})
    whole = make_weight("w", (256,), kind, {n: len(v) for n, v in values.items()})
    pieces = split(whole, max(p.nbytes for p in weight("w", 16 * most, 256, quant=kind).planes))
    assert all(len(p.shape) == 2 and p.shape[0] <= 16 * most for p in pieces)
    cuts = [data[i : i + shard_size] for i in range(0, len(data), shard_size)]

    async def load() -> np.ndarray:
        device = CpuDevice()
        await device.allocate(pieces)
        for cut, jobs in zip(cuts, shard_jobs(index, pieces, [len(c) for c in cuts]), strict=True):
            await device.upload(cut, jobs)
        return np.frombuffer(b"".join([await device.read(p) for p in pieces]), np.float32)

    want = np.concatenate([oracle(*tensors[n]) for n in values])
    np.testing.assert_array_equal(asyncio.run(load()), want)
    assert all(a.name != b.name for a, b in pairwise(pieces))
