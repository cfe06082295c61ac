"""`build.py debug`: what is wrong in a plan is found, and named, call by call."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from engine import loader, ops
from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.backends.null import NullDevice
from engine.config import LoadConfig
from engine.host.debug.command import main as run
from engine.host.debug.comparison import UNWRITTEN, Comparison, Seen, Step, farthest
from engine.host.debug.files import FileWeights, host_of
from engine.host.debug.running import Found, conclude, examine, lay_out, steps_of
from engine.host.errors import HostError
from engine.host.shards import About, cut_unpinned
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.kv_values import Precision
from engine.plan import Call, PlanBuilder, Tensor
from engine.weights.quants import make_weight
from tests.kernels.cases import DEVICES
from tests.native import unchecked
from tests.tiny import TINY
from tests.unit.debugging import arguments, plant

ABOUT = About("tiny", "tiny", TINY.name, "", "")


def is_output_of(layer: int) -> Callable[[Call], bool]:
    return lambda call: (
        "w" in call.args and call.args["w"].name == f"blk.{layer}.attn_output.weight"
    )


def test_a_right_model_has_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments()) == 0
    said = capsys.readouterr().out
    assert "nothing differs" in said
    assert "logits of decode: 0 beside" in said


def test_a_wrong_kernel_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(a: Mapping[str, Any]) -> None:
        if len(a["y"]) > 1:  # the prompt
            a["y"][3, 17] += 0.25

    plant(monkeypatch, is_output_of(1), spoil)
    assert run(arguments(all=True)) == 1
    said = capsys.readouterr().out
    table = [line for line in said.splitlines() if line.startswith(("prefill", "decode", "head"))]
    wrong = [line for line in table if line.endswith("DIFFERS")]
    # Those after it compute the right thing of wrong inputs: only end to end they are off.
    assert len(wrong) == 2 and all("linear.11" in line for line in wrong)  # of two chunks
    after = table[table.index(wrong[0]) + 1]
    assert after.split()[-2] == "0" and float(after.split()[-1]) > 1e-3
    assert "First tensor that differs: linear.11 (y), 16x64, f32" in said
    assert "of prefill: linear_team 64x64 q4" in said
    assert "layer 1, op linear, attn_output, 16 tokens" in said
    worst = next(line for line in said.splitlines() if "worst element" in line)
    assert "[3, 17]" in worst and "difference 0.25" in worst
    got, wanted = (float(worst.split(word)[1].split(",")[0]) for word in ("got ", "wanted "))
    assert got - wanted == pytest.approx(0.25, abs=1e-5)
    assert "end to end, references alone: [3, 17]" in said


def test_a_fault_in_another_layer_is_not_that_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, is_output_of(1), lambda a: a["y"].__iadd__(0.25))
    assert run(arguments(layer=1)) == 1
    assert run(arguments(layer=0)) == 0
    assert run(arguments(layer=2)) == 0  # its inputs are wrong, but what it makes of them is not


def test_what_is_within_the_tolerance_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, is_output_of(0), lambda a: a["y"].__imul__(1.001))
    assert run(arguments()) == 1
    assert "allowed" in capsys.readouterr().out
    assert run(arguments(looser=20.0)) == 0


@pytest.mark.parametrize("compare", [True, False])
def test_the_first_value_that_is_not_finite_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compare: bool
) -> None:
    def spoil(a: Mapping[str, Any]) -> None:
        if len(a["q"]) > 1:  # the prompt
            a["q"][2, 5] = math.nan
            a["q"][2, 9] = math.inf

    plant(monkeypatch, lambda c: c.op == "rope_store" and c.layer == 2, spoil)
    assert run(arguments(compare=compare)) == 1
    said = capsys.readouterr().out
    assert "First value that is not finite: q.15 (q) [2, 5], 2 of 1024 in 16x64" in said
    assert "layer 2, op rope_store" in said
    assert ("First tensor that differs: q.15 (q)" in said) == compare
    assert ("difference inf" in said) == compare


def test_a_wrong_key_in_the_cache_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(
        monkeypatch,
        lambda c: c.op == "rope_store" and c.layer == 1,
        lambda a: a["k_pool"][0].__iadd__(1),
    )
    assert run(arguments()) == 1
    assert "First tensor that differs: k.1 (k_pool)" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["a byte", "a scale", "a step", ""])
def test_a_wrong_byte_in_the_cache_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value may be rounded to the byte beside its own, but not be another one."""

    def spoil(a: Mapping[str, Any]) -> None:
        if len(a["q"]) == 1:  # no prompt
            return
        head = a["v_pool"][0, 1]
        row = head[: KV_BLOCK * 4].view(np.int8).reshape(KV_BLOCK, 16)[3]
        at = int(np.abs(row).argmax())
        if what == "a scale":
            head[KV_BLOCK * 4 :].view(np.float16)[2 * 3] *= np.float16(1.1)
        elif what:
            row[at] -= np.sign(row[at]) * {"a byte": 12, "a step": 1}[what]

    plant(monkeypatch, lambda c: bool(what) and c.op == "rope_store" and c.layer == 1, spoil)
    is_wrong = what in ("a byte", "a scale")
    assert run(arguments(kv_precision="q8")) == is_wrong
    said = capsys.readouterr().out
    assert ("First tensor that differs: v.1 (v_pool), 2x2x16x16, u32" in said) == is_wrong
    assert ("worst element: [0, 1, 3, " in said) == is_wrong


def test_a_wrong_choice_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, lambda c: c.op == "sample_pick", lambda a: a["tokens"].__iadd__(1))
    assert run(arguments()) == 1
    said = capsys.readouterr().out
    assert "First tensor that differs: tokens (tokens)" in said
    assert "or sample_scan before it, whose result only this call reads" in said


@pytest.mark.parametrize(
    ("device", "kv_precision"),
    [("plain-q8", "f16"), ("workgroup", "f16"), ("subgroup", "f16"), ("subgroup", "q8")],
)
@pytest.mark.parametrize("at", ["attention_split", "attention", "quantize", ""])
def test_plans_of_a_gpu_are_compared(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    kv_precision: Precision,
    at: str,
) -> None:
    """Where kernel and reference lay out a result in their own ways, the fault is named where it
    can be seen, together with where it may be."""

    def spoil(a: Mapping[str, Any]) -> None:
        for name in ("parts", "y", "y_scales"):
            if name in a:
                a[name][0].reshape(-1)[1] *= 1.1

    plant(monkeypatch, lambda call: call.op == at, spoil)
    monkeypatch.setattr(loader, "right_plans", unchecked)

    async def found() -> tuple[Found, set[str]]:
        cpu = CpuDevice()
        cpu.traits = replace(DEVICES[device], chunk=8, kv_value_bytes=4)

        async def opener(_: LoadConfig) -> tuple[Device, str]:
            return cpu, ""

        host = host_of(TINY, None)
        config = LoadConfig(context=256, tune=False, kv_precision=kv_precision)
        model = await loader.load(host, config, lambda *_: None, opener=opener)
        ids = list(range(5, 25))
        weights, head_dim = await FileWeights.of(host), model.kv.head_dim
        comparison = Comparison(cpu, await lay_out(model, 22), weights, head_dim=head_dim)
        kinds = {call.op for plan in model.plans.values() for call in plan.calls}
        return await examine(comparison, steps_of(model, ids, 2)), kinds

    it, kinds = asyncio.run(found())
    assert conclude(it, True) == (at in kinds)
    said = capsys.readouterr().out
    if at not in kinds:
        assert "nothing differs" in said
    elif at == "attention_split":
        assert {seen.call.op for seen in it.seen if seen.differs} == {"linear"}
        assert "or attention_split before it, whose result only this call reads" in said
    else:
        assert {seen.call.op for seen in it.seen if seen.differs} == {at}


def test_a_folder_of_shards_is_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_unpinned(TINY, tmp_path / "tiny", ABOUT, 40_000)
    capsys.readouterr()
    assert run(arguments(model=tmp_path / "tiny")) == 0
    from_shards = capsys.readouterr().out
    assert run(arguments()) == 0
    assert from_shards.splitlines()[1:] == capsys.readouterr().out.splitlines()[1:]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no manifest"):
        host_of(tmp_path, None)
    (tmp_path / "manifest.json").write_text(json.dumps({"shards": [{"name": "000.bin"}]}))
    with pytest.raises(HostError, match="is not there"):
        host_of(tmp_path, None)
    with pytest.raises(HostError, match="no file"):
        host_of(tmp_path / "model.gguf", None)
    with pytest.raises(HostError, match="no tokens"):
        run(arguments(prompt="", raw=True))
    with pytest.raises(HostError, match="0 to 2"):
        run(arguments(layer=3))
    with pytest.raises(HostError, match="context holds 256"):
        run(arguments(steps=300))


def test_weights_come_from_the_files_as_the_engine_reads_them(tmp_path: Path) -> None:
    """In shards that cut them, and stacked of several tensors."""
    import gguf as oracle

    from engine.models import open_model
    from engine.weights.gguf import read_header

    header = read_header(TINY.read_bytes(), TINY.stat().st_size)
    model = open_model(header)
    within_its_first_block = header.tensors["blk.1.attn_output.weight"].offset + 8
    cut_unpinned(TINY, tmp_path / "few", ABOUT, within_its_first_block)
    cut_unpinned(TINY, tmp_path / "many", ABOUT, 4096)
    tensors = {
        t.name: oracle.dequantize(t.data, t.tensor_type).ravel()
        for t in oracle.GGUFReader(TINY).tensors
    }

    async def check(folder: Path) -> None:
        weights = await FileWeights.of(host_of(folder, None))
        for weight in model.weights():
            want = np.concatenate([tensors[source] for source in weight.sources])
            got = await weights.get(weight)
            assert got.shape == weight.shape
            assert np.array_equal(got.ravel(), want), weight.name

    asyncio.run(check(tmp_path / "few"))
    asyncio.run(check(tmp_path / "many"))


def test_calls_know_their_layer_and_what_is_whole_after_them() -> None:
    b = PlanBuilder("p", DEVICES["workgroup"], 1)
    x = Tensor("x", (1, 64), "f32", "state")
    b.layer = 4
    parts = tuple(make_weight(name, (64,), "Q4_0", {name: 32}) for name in ("q", "k", "v"))
    ops.linear(b, x, parts)
    b.layer = None
    ops.rmsnorm(b, x, make_weight("norm", (), "F32", {"norm": 64}), 1e-5)
    plan = b.build()
    assert [call.layer for call in plan.calls] == [4, 4, 4, None]
    assert plan.results() == [(), (), ("y",), ("y",)]


class Scripted(NullDevice):
    """Every call writes these numbers."""

    numbers: ClassVar = np.array([[1, 5, np.nan, np.inf]], np.float32)

    async def trace(self, *_: Any) -> dict[str, bytes]:
        return {"y": self.numbers.tobytes()}


@pytest.mark.parametrize("first", [0, 1])
def test_what_a_call_does_not_write_is_not_compared(first: int) -> None:
    """A piece of a product writes its part of the columns; beside it may lie anything."""

    def reference(a: Mapping[str, Any]) -> None:
        a["y"][:, first : first + 2] = [[1, 4]]
        assert np.isnan(np.sqrt(np.float32(-1)))  # in silence, whatever a device has made of it

    async def seen() -> list[Seen]:
        b = PlanBuilder("p", DEVICES["plain"], 1)
        b.call(Call("piece", {"y": b.activation("y", 1, 4)}, ("y",), reference))
        weights = await FileWeights.of(host_of(TINY, None))
        return [it async for it in Comparison(Scripted(), 0, weights).run([Step(b.build(), 1)])]

    (it,) = asyncio.run(seen())
    assert it.own and it.differs
    assert (it.own.index, it.own.wanted) == ((0, 1 + first), 4)
    assert it.bad == (None if first == 0 else (0, 2))
    assert it.summary.count == 2 and it.summary.not_finite == first


def test_rows_of_a_chunk_that_mean_something() -> None:
    plan = PlanBuilder("p", DEVICES["plain"], 16).build()
    assert plan.elements(Tensor("a", (16, 3, 2)), 5) == 30
    assert plan.elements(Tensor("s", (16, 3), "f32", "state"), 5) == 48


def test_the_farthest_element() -> None:
    wanted = np.array([[1.0, 2.0], [np.nan, 4.0]], np.float32)
    got = np.array([[1.5, 2.0], [np.nan, 4.25]], np.float32)
    found = farthest(got, wanted)
    assert found and (found.index, found.difference) == ((0, 0), 0.5)
    got[0, 1] = np.nan
    found = farthest(got, wanted)
    assert found and (found.index, found.difference) == ((0, 1), math.inf)
    wanted.view(np.uint32)[0, 1] = UNWRITTEN  # nothing is wanted there
    found = farthest(got, wanted)
    assert found and found.index == (0, 0)
    wanted.view(np.uint32)[:] = UNWRITTEN
    assert farthest(got, wanted) is None
