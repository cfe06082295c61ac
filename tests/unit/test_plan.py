"""Planning without a device: dispatch counts, buffer reuse, valid joins of WGSL pieces."""

from __future__ import annotations

import re

import pytest

from engine import ops
from engine.backends.base import persistent_tensors
from engine.graph.lowering import record
from engine.host.convert.onnx_graph.conversion import simplified
from engine.host.convert.onnx_graph.source import open_onnx
from engine.measuring import skeleton
from engine.models import open_model
from engine.models.plans import CHOOSE, DECODE, HEAD, PREFILL, SAMPLE, build_plans
from engine.ops.kv_values import Precision
from engine.ops.norm import Norm
from engine.plan import Call, Plan, PlanBuilder, Tensor, Traits, assign_slots
from engine.shaders import piece, wgsl_root
from engine.weights.gguf import read_header
from engine.weights.loading import repack_kernels
from engine.weights.quants import FORMATS, QUANTS, packed_lib, pairs_lib, weight_lib
from tests.conftest import ROOT
from tests.kernels.cases import DEVICES, builder, state, weight

TRAITS = {
    "gpu": Traits("webgpu", subgroup=32),
    "gpu without subgroups": Traits("webgpu"),
    "software": Traits("webgpu", software=True, barriers=False, activations="q16", chunk=16),
    "cpu": Traits("cpu", chunk=16),
}


def plans(traits: Traits, name: str = "tiny", precision: Precision = "f16") -> dict[str, Plan]:
    data = (ROOT / f"tests/golden/{name}.gguf").read_bytes()
    model = open_model(read_header(data, len(data)))
    return build_plans(model, traits, model.config.kv_layout(8, 128, precision))


@pytest.mark.parametrize("device", ["gpu", "gpu without subgroups"])
def test_decode_takes_five_dispatches_a_layer_and_four(device: str) -> None:
    layers = 3
    found = plans(TRAITS[device])
    assert len(found[DECODE].calls) + len(found[SAMPLE].calls) == 5 * layers + 4


def test_dispatches_in_order() -> None:
    layer = ["linear", "attention_split", "linear", "linear", "linear"]
    calls = {name: [c.op for c in plan.calls] for name, plan in plans(TRAITS["gpu"]).items()}
    assert calls[DECODE] == ["embed", *layer * 3, "linear"]
    assert calls[HEAD] == ["linear"]
    assert calls[SAMPLE] == ["sample_scan", "sample_pick"]
    assert calls[CHOOSE] == ["sample_adjust", "sample_choose"]


def test_heads_are_normalized_between_their_product_and_the_attention() -> None:
    layer = ["linear", "head_norm", "attention_split"]
    calls = [c.op for c in plans(TRAITS["gpu"], "tiny_qwen3")[DECODE].calls]
    assert calls[1:4] == layer and calls.count("head_norm") == 3


@pytest.mark.parametrize("device", TRAITS)
def test_no_call_shares_memory_between_its_arguments(device: str) -> None:
    for plan in plans(TRAITS[device]).values():
        for call in plan.calls:
            slots = [plan.slot_of[t.name] for t in call.args.values() if t.name in plan.slot_of]
            assert len(set(slots)) == len(slots)


@pytest.mark.parametrize("device", TRAITS)
def test_a_value_stays_until_its_last_reader(device: str) -> None:
    for plan in plans(TRAITS[device]).values():
        holder: dict[int, str] = {}
        for call in plan.calls:
            for arg, tensor in call.args.items():
                if tensor.role != "activation":
                    continue
                slot = plan.slot_of[tensor.name]
                if arg not in call.writes:
                    assert holder[slot] == tensor.name, f"{call.op} reads what was overwritten"
                assert plan.slot_bytes[slot] >= tensor.nbytes
            for arg in call.writes:
                tensor = call.args[arg]
                if tensor.role == "activation":
                    holder[plan.slot_of[tensor.name]] = tensor.name


def test_slots_are_reused() -> None:
    plan = plans(TRAITS["gpu"])[PREFILL]
    assert len(plan.slot_of) > 15
    assert len(plan.slot_bytes) <= 5


def test_assign_slots_exactly() -> None:
    x, y, z = (Tensor(name, (4,)) for name in "xyz")

    def call(**args: Tensor) -> Call:
        return Call("op", args, ("out",), lambda _: None)

    calls = [call(out=x), call(a=x, out=y), call(a=y, out=z)]
    assert assign_slots(calls) == ({"x": 0, "y": 1, "z": 0}, [16, 16])


@pytest.mark.parametrize("device", [d for d in TRAITS if d != "cpu"])
@pytest.mark.parametrize(
    ("name", "precision"),
    [("tiny", "f16"), ("tiny_qwen2", "f16"), ("tiny_qwen3", "f16"), ("tiny", "q8")],
)
def test_bindings_fit_and_are_all_used(device: str, name: str, precision: Precision) -> None:
    found = plans(TRAITS[device], name, precision)
    shaders = [c.shader for p in found.values() for c in p.calls]
    for shader in [*shaders, *repack_kernels().values()]:
        assert shader is not None
        assert len(shader.slots) <= 8, "WebGPU guarantees 8 storage buffers a stage"
        code = shader.code()
        for name in (*(s.name for s in shader.slots), *shader.overrides, *shader.consts):
            assert len(re.findall(rf"\b{name}\b", code)) > 1, f"{shader.name}: {name} is unused"


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, 8])
def test_bindings_of_every_quantization_fit(quant: str, device: str, tokens: int) -> None:
    b = builder(device, tokens)
    x, residual = state("x", tokens, 256), state("residual", tokens, 8)
    w, norm = weight("w", 8, 256, quant=quant), Norm(weight("gain", 256), 1e-5)
    ops.linear(b, x, w, norm=norm, bias=weight("bias", 8))
    ops.linear(b, x, w, norm=norm, residual=residual)
    for call in b.build().calls:
        assert call.shader
        assert len(call.shader.slots) <= 8, "WebGPU guarantees 8 storage buffers a stage"


def test_every_wgsl_file_is_used() -> None:
    used = set()
    for traits in (
        *TRAITS.values(),
        Traits("webgpu", activations="q8"),
        Traits("webgpu", barriers=False),
        Traits("webgpu", barriers=False, activations="q16"),
    ):
        for name in ("tiny", "tiny_untied", "tiny_qwen3", "tiny_gemma3"):
            data = (ROOT / f"tests/golden/{name}.gguf").read_bytes()
            model = open_model(read_header(data, len(data)))
            precision: Precision = "q8" if name == "tiny_untied" else "f16"
            plans = build_plans(model, traits, model.config.kv_layout(8, 128, precision))
            for plan in (*plans.values(), skeleton(plans[DECODE], plans[SAMPLE])):
                for call in plan.calls:
                    assert call.shader
                    used |= {call.shader.name, *(f"lib/{p}" for p in call.shader.lib)}
    for name in ("bert", "qwen2"):
        for graph in (
            opened := open_onnx(ROOT / f"tests/golden/onnx_{name}.onnx"),
            simplified(opened),
        ):
            for traits in (Traits("webgpu"), Traits("webgpu", barriers=False)):
                for call in record(graph, {"batch": 2, "sequence": 5}, traits).plan.calls:
                    assert call.shader
                    used |= {call.shader.name, *(f"lib/{p}" for p in call.shader.lib)}
    # Kernel tests run every format.
    for format in FORMATS:
        pieces = (*weight_lib(format), *packed_lib(format), *pairs_lib(format))
        used |= {f"lib/{name}" for name in pieces}
    for shader in repack_kernels().values():
        used |= {shader.name, *(f"lib/{p}" for p in shader.lib)}
    root = wgsl_root()
    files = {str(p.relative_to(root).with_suffix("")) for p in root.rglob("*.wgsl")}
    # What only other models need; kernel tests cover it.
    assert files - used <= {"lib/bias_add", "lib/attend_mask_none", "gate", "scatter", "reduce"}
    assert all(piece(name).startswith(("//", "fn")) for name in files)


def test_persistent_tensors() -> None:
    tensors = persistent_tensors(plans(TRAITS["gpu"]).values())
    assert {n for n, t in tensors.items() if t.role == "state"} == {
        "step",
        "tokens",
        "sampled",
        "sampling",
        "logits",
        "logprobs",
        "counts",
        "bias",
        "mask",
        "shift",
        "hidden",
        "rope",
        "block_table",
    }
    assert {n for n, t in tensors.items() if t.role == "kv"} == {
        f"{w}.{i}" for w in "kv" for i in range(3)
    }
    assert PlanBuilder("x", TRAITS["gpu"]).build().tensors("kv") == {}
