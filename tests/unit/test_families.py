"""Logits of every family on the CPU device, in f32, against what transformers computes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.models import Model, open_model
from engine.ops import Reach
from engine.ops.state import logits_tensor
from engine.weights.gguf import read_header
from tests.conftest import ROOT
from tests.native import NativeHost, ready_of

FOLDER = ROOT / "tests/golden"
GOLDEN: dict[str, Any] = json.loads((FOLDER / "logits.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-3  # of the largest logit; f32 sums in another order differ by 1e-6


async def logits(name: str, context: int, ids: list[int], upto: list[int]) -> list[Any]:
    """Logits (vocab,) after each of some tokens of a text."""
    engine = Engine(NativeHost(FOLDER / f"{name}.gguf"))
    await engine.load(LoadConfig(context=context, activations="f32"), lambda *_: None)
    model = ready_of(engine).model
    found = []
    for at in upto:
        async for _ in engine.complete(ids[: at + 1], GenerateConfig(max_tokens=1)):
            pass
        values = await model.device.read(logits_tensor(model.config.vocab))
        found.append(np.frombuffer(values, np.float32))
    return found


@pytest.mark.golden
@pytest.mark.parametrize("name", GOLDEN["logits"])
def test_logits_equal_the_oracle(name: str) -> None:
    # A context that is no longer than the original one has short factors (longrope).
    model, *short = name.split()
    got = asyncio.run(logits(model, 64 if short else 512, GOLDEN["ids"], GOLDEN["at"]))
    for values, golden in zip(got, GOLDEN["logits"][name], strict=True):
        want = np.array(golden)
        assert np.abs(values - want).max() < TOLERANCE * np.abs(want).max()


def opened(name: str, metadata: dict[str, object]) -> Model:
    """A tiny model with other metadata; the value None takes a field away."""
    data = (FOLDER / f"{name}.gguf").read_bytes()
    good = read_header(data, len(data))
    changed = {k: v for k, v in {**good.metadata, **metadata}.items() if v is not None}
    return open_model(replace(good, metadata=changed))


def test_gemma_sees_a_window_in_five_of_six_layers() -> None:
    config = opened("tiny_gemma3", {}).config
    near = Reach(20, "rope.local")
    assert config.reach == (near, near, near, near, near, Reach(), near)
    everywhere, local = config.ropes
    assert (everywhere.base, everywhere.scale, local.base, local.scale) == (1e6, 2.0, 1e4, 1.0)
    key = "gemma3.attention.sliding_window_pattern"
    assert opened("tiny_gemma3", {key: 2}).config.reach[:3] == (near, Reach(), near)
    no_window = opened("tiny_gemma3", {"gemma3.attention.sliding_window": None}).config
    assert no_window.reach == (Reach(),) * 7
    assert [rope.name for rope in no_window.ropes] == ["rope"]
    based = opened("tiny_gemma3", {"gemma3.rope.freq_base_swa": 5e4}).config
    assert based.ropes[1].base == 5e4


def test_only_the_largest_gemma_scales_attention_by_its_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.models.gemma3.LAYERS_27B", 7)
    assert opened("tiny_gemma3", {}).config.scale == (64 / 4) ** -0.5
    monkeypatch.undo()
    assert opened("tiny_gemma3", {}).config.scale == 24**-0.5


def test_a_model_with_a_window_has_it_in_all_layers() -> None:
    assert opened("tiny", {}).config.reach == (Reach(),) * 3
    config = opened("tiny", {"llama.attention.sliding_window": 100}).config
    assert (config.reach, config.context) == ((Reach(100),) * 3, 512)
    assert opened("tiny_phi3", {}).config.reach == (Reach(24),) * 3


def test_factors_are_long_beyond_the_original_context() -> None:
    (rope,) = opened("tiny_phi3", {}).config.ropes
    names = [rope.factors_in(context) for context in (16, 64, 65, 512)]
    wanted = ["short", "short", "long", "long"]
    assert [w and w.name for w in names] == [f"rope_factors_{kind}.weight" for kind in wanted]
    assert rope.rotary == 12
    assert rope.magnitude == 1.1875
