"""`inspect`: one step, looked into by the protocol."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.backends.cpu import CpuDevice
from engine.backends.summary import Summary, summarize
from engine.errors import OctavoError
from engine.inspecting import telling
from engine.plan import Plan, PlanBuilder, Tensor
from engine.weights.quants import make_weight
from tests.conftest import ROOT
from tests.kernels.cases import DEVICES
from tests.native import ready_of
from tests.tiny import HELLO, SHIP
from tests.unit.debugging import plant
from tests.unit.worker_client import Client


def asked(*requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of a worker with the tiny model on the CPU."""

    async def ask() -> list[dict[str, Any]]:
        client = Client()
        await client.ask("load")
        return [await client.ask(kind, **content) for kind, content in requests]

    return asyncio.run(ask())


def test_every_layer_is_seen_and_the_likeliest_tokens_are_those_of_an_answer() -> None:
    logprobs = {"max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    inspected, answer = asked(
        ("inspect", {"messages": HELLO, "top": 5}), ("generate", {"messages": HELLO, **logprobs})
    )
    value = inspected["value"]
    assert (value["tokens"], value["layers"]) == (answer["value"]["usage"]["prompt_tokens"], 3)
    # What was computed is there for the next answer.
    assert answer["value"]["usage"]["cached_tokens"] == value["tokens"] - 1
    names = [(call["layer"], call["name"]) for call in value["calls"]]
    layer = ["attn_qkv", "rope_store", "attention", "attn_output", "ffn_gate_up", "ffn_down"]
    inside = [(i, name) for i in range(3) for name in layer]
    assert names == [(None, "token_embd"), *inside, (None, "logits")]
    for call in value["calls"]:
        assert call["not_finite"] == 0 and call["count"] == math.prod(call["shape"])
        assert call["low"] <= call["mean"] <= call["high"]
        assert abs(call["mean"]) <= call["rms"] <= max(-call["low"], call["high"])
    want = answer["value"]["logprobs"][0]["top_logprobs"]
    assert [token["id"] for token in value["top"]] == [token["id"] for token in want]
    for token, other in zip(value["top"], want, strict=True):
        assert token["probability"] == pytest.approx(math.exp(other["logprob"]), rel=1e-4)
    assert value["top"][0]["logit"] == pytest.approx(value["calls"][-1]["high"])


def test_a_prompt_of_ids_gives_what_the_oracle_says() -> None:
    (inspected,) = asked(("inspect", {"prompt": SHIP["prompt_ids"], "top": 1}))
    assert [token["id"] for token in inspected["value"]["top"]] == SHIP["ids"][:1]


def test_it_leaves_the_answers_after_it_as_they_are() -> None:
    ids = {"prompt": SHIP["prompt_ids"], "max_tokens": 20}
    look = ("inspect", {"prompt": SHIP["prompt_ids"]})
    *_, answer = asked(look, look, ("generate", ids))
    assert answer["value"]["ids"] == SHIP["ids"][:20]


def test_one_token_is_enough() -> None:
    first, again = asked(("inspect", {"prompt": [5]}), ("inspect", {"prompt": [5]}))
    assert first["value"] == again["value"]
    assert first["value"]["tokens"] == 1 and len(first["value"]["top"]) == 10


def test_answers_at_the_same_time_are_not_disturbed() -> None:
    async def both() -> None:
        client = Client()
        await client.ask("load")
        ids = SHIP["prompt_ids"]
        answer = client.send("generate", prompt=ids, max_tokens=40)
        looks = [client.send("inspect", prompt=ids[:n], top=1) for n in (3, 17, len(ids))]
        assert (await client.ended(answer))["value"]["ids"] == SHIP["ids"][:40]
        alone = [await client.ask("inspect", prompt=ids[:n], top=1) for n in (3, 17, len(ids))]
        for look, other in zip(looks, alone, strict=True):
            one, two = (await client.ended(look))["value"]["top"][0], other["value"]["top"][0]
            assert one["id"] == two["id"] and one["logit"] == pytest.approx(two["logit"], abs=1e-3)

    asyncio.run(both())


def test_it_can_be_stopped_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = CpuDevice.survey

    async def survey(self: CpuDevice, plan: Plan, index: int, *others: Any) -> dict[str, Summary]:
        seen.append(index)
        await asyncio.sleep(0)
        return await original(self, plan, index, *others)

    monkeypatch.setattr(CpuDevice, "survey", survey)

    async def stop() -> None:
        client = Client()
        await client.ask("load")
        id = client.send("inspect", messages=HELLO)
        while len(seen) < 5:
            await asyncio.sleep(0)
        assert (await client.ask("stop", target=id))["value"] == {"stopped": True}
        assert (await client.ended(id))["error"]["code"] == "request.cancelled"
        assert len(seen) < 10
        assert (await client.ask("inspect", messages=HELLO))["value"]["top"]
        model = ready_of(client.worker._engine).model
        assert model.pool.num_used == 0

    asyncio.run(stop())


def test_a_lost_gpu_is_replaced_and_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (want,) = asked(("inspect", {"messages": HELLO}))
    original, losses = CpuDevice.survey, [7]

    async def survey(self: CpuDevice, plan: Plan, index: int, *others: Any) -> dict[str, Summary]:
        if index in losses:
            losses.remove(index)
            raise OctavoError("gpu.lost")
        return await original(self, plan, index, *others)

    monkeypatch.setattr(CpuDevice, "survey", survey)
    (inspected,) = asked(("inspect", {"messages": HELLO}))
    assert not losses
    assert inspected["value"] == want["value"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({}, "request.invalid"),
        ({"messages": HELLO, "prompt": "a"}, "request.invalid"),
        ({"prompt": ""}, "prompt.empty"),
        ({"prompt": [100_000]}, "request.invalid"),
        ({"prompt": "word " * 2000}, "prompt.too_long"),
        ({"prompt": "a", "top": 0}, "request.invalid"),
        ({"prompt": "a", "top": 101}, "request.invalid"),
        ({"prompt": "a", "model": "other"}, "engine.not_loaded"),
    ],
)
def test_bad_requests_are_refused(content: dict[str, Any], code: str) -> None:
    refused, works = asked(("inspect", content), ("inspect", {"prompt": "a"}))
    assert refused["error"]["code"] == code
    assert works["value"]["top"]


def test_what_is_not_finite_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(a: Mapping[str, Any]) -> None:
        a["y"][-1, 3] = math.nan

    plant(monkeypatch, lambda c: c.op == "attention" and c.layer == 1, spoil)
    (inspected,) = asked(("inspect", {"messages": HELLO}))
    calls = inspected["value"]["calls"]
    bad = [(call["layer"], call["name"]) for call in calls if call["not_finite"]]
    assert bad[:2] == [(1, "attention"), (1, "attn_output")]
    assert next(c for c in calls if c["not_finite"])["not_finite"] == 1
    assert inspected["value"]["top"] == []  # no logit is left


def test_pieces_and_what_only_kernels_understand_are_left_out() -> None:
    b = PlanBuilder("p", DEVICES["plain-q16"], 1)
    x = Tensor("x", (1, 64), "f32", "state")
    parts = tuple(make_weight(name, (64,), "Q4_0", {name: 32}) for name in ("q", "k"))
    ops.linear(b, x, parts)
    plan = b.build()
    assert [call.op for call in plan.calls] == ["quantize", "linear", "linear"]
    assert telling(plan) == [{}, {}, {"y": 64}]


def test_a_summary_leaves_out_what_is_not_finite() -> None:
    values = np.array([[1, -3, np.nan], [np.inf, 2, 0]], np.float32)
    found = summarize(values)
    assert (found.count, found.not_finite, found.low, found.high) == (6, 2, -3, 2)
    assert found.mean == 0 and found.rms == pytest.approx(math.sqrt(14 / 4))
    assert summarize(np.full(2, np.inf, np.float32)) == Summary(2, 2, 0, 0, 0, 0)


def test_javascript_says_the_same(tmp_path: Path) -> None:
    import subprocess

    from engine.host import npm

    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    values[[3, 500]] = np.nan, -np.inf
    path = tmp_path / "values.bin"
    path.write_bytes(values.tobytes())
    script = (
        'import { readFileSync } from "node:fs";'
        f'import {{ summarize }} from "{(ROOT / "worker/summary.mjs").as_uri()}";'
        f'const bytes = new Uint8Array(readFileSync("{path}"));'
        "for (const part of [bytes, bytes.slice(12, 16)])"
        "  console.log(JSON.stringify(summarize(part)));"
    )
    command = [npm.node(), "--input-type=module", "--eval", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    got = json.loads(told[0])
    assert got == pytest.approx(list(vars(summarize(values)).values()))
    assert told[1] == "[1,1,0,0,0,0]"
