"""Whole plans of a tiny model: every device variant computes what the CPU reference computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.base import weights_of
from engine.models import open_model
from engine.ops.state import SAMPLED, StepRecord, tokens_tensor
from engine.plan import PlanBuilder, Traits
from engine.weights.gguf import read_header
from tests.golden.make_tiny import MODELS
from tests.kernels.cases import DEVICES
from tests.kernels.harness import Case, Harness
from tests.kernels.model_cases import CONTEXT, tiny_case, tiny_inputs
from tests.tiny import PROMPTS, TINY

NAMES = [*MODELS]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 37])
@pytest.mark.parametrize("device", DEVICES)
def test_logits_equal_the_reference(harness: Harness, device: str, count: int, name: str) -> None:
    tokens = [int(t) for t in np.random.default_rng(1).integers(1, 500, count)]
    case, logits = tiny_case(device, tokens, path=TINY.with_name(f"{name}.gguf"))
    (got,) = harness.run(case, [logits])
    want = case.reference()[logits.name]
    assert np.isfinite(got).all()
    # Rounding activations to 8 bits can fall to either side of a half, and that spreads.
    assert cosine(got, want) > (0.999 if DEVICES[device].activations == "q8" else 0.9999)
    assert got.argmax() == want.argmax()


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("device", ["plain-q16", "workgroup"])
def test_heads_may_be_quantized_differently(harness: Harness, device: str, count: int) -> None:
    kinds = {"blk.0.attn_v.weight": "F16", "blk.1.attn_q.weight": "Q8_0"}
    tokens = [int(t) for t in np.random.default_rng(2).integers(1, 500, count)]
    case, logits = tiny_case(device, tokens, kinds=kinds)
    own = {w.name: w.quant for w in weights_of([case.plan]) if "attn_qkv" in w.name}
    assert [own["blk.0.attn_qkv.0"], own["blk.0.attn_qkv.1"]] == ["Q4_1", "F16"]
    assert [own["blk.1.attn_qkv.0"], own["blk.1.attn_qkv.1"]] == ["Q8_0", "Q4_1"]
    assert own["blk.2.attn_qkv"] == "Q4_1"
    (got,) = harness.run(case, [logits])
    want = case.reference()[logits.name]
    assert cosine(got, want) > 0.9999
    assert got.argmax() == want.argmax()


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("device", ["plain-q16", "workgroup"])
def test_gate_and_up_may_be_quantized_differently(
    harness: Harness, device: str, count: int
) -> None:
    kinds = {"blk.0.ffn_up.weight": "F16", "blk.1.ffn_gate.weight": "Q8_0"}
    tokens = [int(t) for t in np.random.default_rng(2).integers(1, 500, count)]
    case, logits = tiny_case(device, tokens, kinds=kinds)
    own = {w.name: w.quant for w in weights_of([case.plan]) if "ffn_gate_up" in w.name}
    assert [own["blk.0.ffn_gate_up.0"], own["blk.0.ffn_gate_up.1"]] == ["Q4_1", "F16"]
    assert [own["blk.1.ffn_gate_up.0"], own["blk.1.ffn_gate_up.1"]] == ["Q8_0", "Q4_1"]
    assert own["blk.2.ffn_gate_up"] == "Q4_1"
    (got,) = harness.run(case, [logits])
    want = case.reference()[logits.name]
    assert cosine(got, want) > 0.9999
    assert got.argmax() == want.argmax()


@pytest.mark.golden
@pytest.mark.parametrize("device", [d for d in DEVICES if DEVICES[d].activations != "q8"])
def test_a_burst_equals_the_oracle(harness: Harness, device: str) -> None:
    """Forty decode steps, one submitted behind the other, from a prompt of one token: each takes
    its token and position from what the step before left on the device."""
    case, wanted = burst_case(DEVICES[device], 12)
    (ids,) = harness.run(case, [SAMPLED], repeat=40)
    assert list(ids[:40]) == wanted[:40]


@pytest.mark.golden
@pytest.mark.parametrize("device", ["plain-q16", "workgroup"])
def test_a_burst_with_matrices_in_pieces(harness: Harness, device: str) -> None:
    """An adapter that binds 4,000 bytes at most: embedding and output are thirteen buffers."""
    traits = replace(DEVICES[device], max_binding_bytes=4000)
    case, wanted = burst_case(traits, 1)
    assert len([w for w in weights_of([case.plan]) if "token_embd" in w.name]) == 13
    case.arrays = {**case.arrays, "block_table": np.zeros(8, np.uint32)}
    (ids,) = harness.run(case, [SAMPLED], repeat=14)
    assert list(ids[:14]) == wanted[:14]


def burst_case(traits: Traits, blocks: int) -> tuple[Case, list[int]]:
    """A decode step from a prompt of one token, KV pools of ``blocks`` blocks, and the ids that its
    replays should sample."""
    from engine import ops

    prompt = next(p for p in PROMPTS if p["name"] == "one token")
    data = TINY.read_bytes()
    model = open_model(read_header(data, len(data)))
    kv = model.config.kv_layout(blocks, CONTEXT)
    b = PlanBuilder("case", traits)
    tokens = tokens_tensor(4)
    ops.sample(b, model.head(b, model.layers(b, tokens, kv)), tokens)
    case = tiny_inputs(Case(b.build(), {}, {}, StepRecord(0, 1)), model, kv)
    case.arrays = {**case.arrays, "tokens": np.array([*prompt["prompt_ids"], 0, 0, 0], np.uint32)}
    return case, prompt["ids"]


@pytest.mark.parametrize("device", ["plain", "workgroup"])
def test_pools_grow_between_bursts_in_flight(harness: Harness, device: str) -> None:
    """What was submitted before is copied, what comes after sees the copy, in blocks that only the
    larger pools have; a growth that the adapter refuses changes nothing."""
    case, wanted = burst_case(DEVICES[device], 1)
    table = np.array([0, 2, 1, 4, 3, 5, 6, 7], np.uint32)
    case.arrays = {**case.arrays, "block_table": table}
    (ids,), grown = harness.growing(case, [SAMPLED], 16, [3, 1 << 30, 5])
    assert list(ids[:64]) == wanted[:64]
    assert [done for done, _ in grown] == [True, False, True]
    first, refused, second = (held for _, held in grown)
    assert refused == first
    assert first["kv"] * 5 == second["kv"] * 3 > 0
    assert {**first, "kv": 0} == {**second, "kv": 0}
