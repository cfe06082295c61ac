"""Loading: which bytes go where, and files that cannot be loaded."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import loader
from engine.backends.cpu import CpuDevice
from engine.backends.native import Native
from engine.backends.null import NullDevice
from engine.backends.webgpu import JOBS_BYTES, WebGpuDevice, traits_of
from engine.config import Activations, LoadConfig
from engine.engine import Engine
from engine.errors import CODES, OctavoError, as_octavo_error
from engine.models import open_model
from engine.models.plans import PREFILL
from engine.plan import Tensor, Traits
from engine.resident import describe
from engine.tokenizer import Encoder
from engine.weights.dequantize import dequantize
from engine.weights.gguf import read_header
from engine.weights.loading import CARRY, shard_jobs
from engine.weights.quants import QUANTS, make_weight
from tests.conftest import ROOT
from tests.kernels.cases import HALVES, random_blocks
from tests.kernels.harness import file_of, oracle, quantize
from tests.native import NativeHost, unchecked
from tests.tiny import TINY


@pytest.mark.parametrize("name", QUANTS)
def test_dequantize_equals_the_oracle(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((7, 256)).astype(np.float32)
    raw = quantize(values, name)
    assert_same_bits(dequantize(name, raw), oracle(name, raw))


@pytest.mark.parametrize("name", HALVES)
def test_dequantize_equals_the_oracle_on_any_bytes(name: str) -> None:
    """Scales are zeros of both signs, subnormal, the largest, and ordinary ones."""
    scales = np.array([0.0, -0.0, 6e-8, -6e-8, 3e-6, 65504, -65504, 0.01, -1.5])
    raw = random_blocks(name, 500, scales)
    assert_same_bits(dequantize(name, raw), oracle(name, raw))


def test_every_bf16_is_the_oracles() -> None:
    raw = np.arange(1 << 16, dtype=np.uint16).tobytes()
    assert_same_bits(dequantize("BF16", raw), oracle("BF16", raw))


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_rows_must_be_whole_blocks() -> None:
    for name, q in QUANTS.items():
        with pytest.raises(OctavoError) as caught:
            make_weight("w", (max(q.block_size // 2, 16),), name, {"w": 3})
        assert caught.value.code == "model.quantization"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(list(QUANTS)), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.integers(130, 3000).map(lambda n: n * 4),
)
def test_every_block_arrives_once(kinds: list[str], rows: list[int], shard_size: int) -> None:
    """Whatever the borders cut, the CPU device holds the oracle's numbers, as f32 or as blocks."""
    rng = np.random.default_rng(1)
    width = 256 if any(QUANTS[kind].block_size == 256 for kind in kinds) else 96
    values = {f"t{i}": rng.standard_normal((rows[i], width)) for i in range(len(kinds))}
    tensors = {n: (k, quantize(v, k)) for (n, v), k in zip(values.items(), kinds, strict=True)}
    index, data = file_of(tensors, {n: v.shape for n, v in values.items()})
    weights = [make_weight(n, (width,), tensors[n][0], {n: len(v)}) for n, v in values.items()]
    cuts = [data[i : i + shard_size] for i in range(0, len(data), shard_size)]
    jobs = shard_jobs(index, weights, [len(c) for c in cuts])

    async def load(native: Native | None) -> None:
        device = CpuDevice(native=native)
        await device.allocate(weights)
        for cut, job in zip(cuts, jobs, strict=True):
            await device.upload(cut, job)
        for weight in weights:
            kept = native is not None and native.takes_blocks(weight)
            got = dequantize(weight.quant if kept else "F32", await device.read(weight))
            np.testing.assert_array_equal(got, oracle(*tensors[weight.name]))
        if native:
            kept = native.takes_blocks
            sizes = {w: len(tensors[w.name][1]) if kept(w) else 4 * prod(w.shape) for w in weights}
            assert device.memory()["weights"] == sum(sizes.values())

    asyncio.run(load(None))
    asyncio.run(load(Native.__new__(Native)))  # without its library, which needs WebAssembly
    covered = sorted(
        (j.weight.name, j.first + i) for s in jobs for j in s.jobs for i in range(j.count)
    )
    assert len(covered) == len(set(covered))
    assert all(j.source >= 0 and j.source % 2 == 0 for s in jobs for j in s.jobs)


def test_the_player_knows_the_same_sizes() -> None:
    text = (ROOT / "worker/upload.mjs").read_text(encoding="utf-8")
    known = {name: int(size) for name, size in re.findall(r"const (\w+) = (\d+);", text)}
    assert known["CARRY"] == CARRY
    assert known["JOBS"] * known["JOB_ALIGN"] == JOBS_BYTES


def edited(edit: Callable[[bytes], bytes], folder: Path) -> Path:
    path = folder / "edited.gguf"
    path.write_bytes(edit(TINY.read_bytes()))
    return path


def renamed(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old, new)


def with_type(name: bytes, kind: int) -> Callable[[bytes], bytes]:
    """Another quantization id in the tensor table."""

    def edit(data: bytes) -> bytes:
        at = data.index(name, data.index(b"token_embd.weight")) + len(name)
        dims = struct.unpack_from("<I", data, at)[0]
        place = at + 4 + 8 * dims
        return data[:place] + struct.pack("<I", kind) + data[place + 4 :]

    return edit


@pytest.mark.parametrize(
    ("edit", "code", "said"),
    [
        (lambda d: b"PK\3\4" + d[4:], "gguf.invalid", ""),
        (lambda d: b"", "manifest.invalid", ""),
        (lambda d: d[:4] + struct.pack("<I", 1) + d[8:], "gguf.version", "1"),
        (lambda d: d[:300], "gguf.truncated", ""),
        (lambda d: d[:-4000], "gguf.truncated", ""),
        (renamed(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                 b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba"),
         "model.architecture", "mamba"),
        (with_type(b"blk.0.attn_output.weight", 999), "model.quantization", "999"),
        (with_type(b"blk.0.attn_norm.weight", 30), "model.quantization", "BF16"),
        (renamed(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"), "model.tensor", "ffn_up"),
        (renamed(b"smollm", b"smellm"), "tokenizer.unsupported", "smellm"),
        (with_type(b"blk.0.attn_norm.weight", 1), "model.quantization", "F32"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_loaded(
    edit: Callable[[bytes], bytes], code: str, said: str, tmp_path: Path
) -> None:
    async def run() -> None:
        engine = Engine(NativeHost(edited(edit, tmp_path), shard_size=20000))
        with pytest.raises(OctavoError) as caught:
            await engine.load(LoadConfig(), lambda *_: None)
        assert caught.value.code == code
        assert said in caught.value.message
        assert engine.status() == {"state": "empty"}
        # Nothing is lost: the same engine loads a good file afterwards.
        engine._host = engine._models.host = NativeHost(TINY)
        await engine.load(LoadConfig(), lambda *_: None)
        assert engine.state == "ready"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("llama.rope.freq_base", -1.0, "gguf.invalid"),
        ("llama.rope.freq_base", "fast", "gguf.invalid"),
        ("llama.block_count", True, "gguf.invalid"),
        ("llama.embedding_length", 0, "gguf.invalid"),
        ("llama.rope.scaling.type", "yarn", "model.architecture"),
        ("llama.rope.dimension_count", 6, "model.architecture"),
        ("llama.rope.dimension_count", 20, "model.architecture"),
        ("llama.attention.sliding_window", "far", "gguf.invalid"),
        ("llama.expert_count", 8, "model.architecture"),
        ("general.architecture", "qwen3moe", "model.architecture"),
        ("general.architecture", "clip", "model.architecture"),
        ("llama.attention.head_count_kv", 3, "gguf.invalid"),
        ("general.architecture", ["llama"], "model.architecture"),
        ("tokenizer.ggml.tokens", 7, "gguf.invalid"),
    ],
)
def test_metadata_that_makes_no_model(key: str, value: object, code: str) -> None:
    data = TINY.read_bytes()
    good = read_header(data, len(data))
    with pytest.raises(OctavoError) as caught:
        open_model(replace(good, metadata={**good.metadata, key: value}))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("metadata", "tensor", "said"),
    [
        ({"llama.expert_count": 8}, "blk.0.ffn_gate.0.weight", "'llama'"),
        ({"general.architecture": "qwen3moe", "qwen3moe.expert_count": 128}, "", "'qwen3moe'"),
        ({}, "blk.0.ffn_gate_exps.weight", "'llama'"),
    ],
)
def test_mixtures_of_experts_are_called_so(
    metadata: dict[str, object], tensor: str, said: str
) -> None:
    data = TINY.read_bytes()
    good = read_header(data, len(data))
    extra = {tensor: replace(good.tensors["output_norm.weight"], name=tensor)} if tensor else {}
    with pytest.raises(OctavoError) as caught:
        open_model(
            replace(
                good,
                metadata={**good.metadata, **metadata},
                tensors={**good.tensors, **extra},
            )
        )
    assert caught.value.code == "model.architecture"
    assert said in caught.value.message
    assert "experts" in caught.value.message


def test_a_tensor_nobody_uses_is_no_detail() -> None:
    data = TINY.read_bytes()
    good = read_header(data, len(data))
    extra = replace(good.tensors["output_norm.weight"], name="rope_factors_long.weight")
    with pytest.raises(OctavoError) as caught:
        open_model(replace(good, tensors={**good.tensors, extra.name: extra}))
    assert caught.value.code == "model.tensor"
    assert "rope_factors_long" in caught.value.message


@pytest.mark.parametrize(
    "metadata",
    [
        {"scaling.type": "linear", "scaling.factor": 4.0},
        {"scaling.factor": 4.0},
        {"scale_linear": 4.0},
    ],
)
def test_linear_rope_scaling_divides_positions(metadata: dict[str, object]) -> None:
    data = TINY.read_bytes()
    good = read_header(data, len(data))
    scaled = {f"llama.rope.{key}": value for key, value in metadata.items()}
    config = open_model(replace(good, metadata={**good.metadata, **scaled})).config
    row = 4 * config.head_dim
    plain, table = (c.ropes[0].table(40) for c in (open_model(good).config, config))
    rows = [table[i : i + row] for i in range(0, len(table), row)]
    assert b"".join(rows[::4]) == plain[: 10 * row]
    assert len(set(rows)) == 40


def test_none_is_no_rope_scaling() -> None:
    data = TINY.read_bytes()
    good = read_header(data, len(data))
    none = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    (rope,) = open_model(replace(good, metadata={**good.metadata, **none})).config.ropes
    assert rope.scale == 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_rope_factors_that_are_none(value: float, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    data = bytearray(TINY.with_name("tiny_llama3.gguf").read_bytes())
    factors = read_header(bytes(data), len(data)).tensors["rope_freqs.weight"]
    struct.pack_into("<f", data, factors.offset + 28, value)
    path.write_bytes(data)

    async def run() -> None:
        engine = Engine(NativeHost(path))
        with pytest.raises(OctavoError) as caught:
            await engine.load(LoadConfig(), lambda *_: None)
        assert caught.value.code == "gguf.invalid"
        assert engine.status() == {"state": "empty"}

    asyncio.run(run())


def test_rope_factors_of_another_shape() -> None:
    data = TINY.read_bytes()
    good = read_header(data, len(data))
    extra = replace(good.tensors["output_norm.weight"], name="rope_freqs.weight")
    with pytest.raises(OctavoError) as caught:
        open_model(replace(good, tensors={**good.tensors, extra.name: extra}))
    assert caught.value.code == "model.tensor"


def test_shards_of_odd_sizes_are_refused() -> None:
    async def run() -> None:
        engine = Engine(NativeHost(TINY, shard_size=4098))
        with pytest.raises(OctavoError) as caught:
            await engine.load(LoadConfig(), lambda *_: None)
        assert caught.value.code == "manifest.invalid"

    asyncio.run(run())


def test_what_is_open_when_weights_fail_to_come_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Failing(CpuDevice):
        async def upload(self, shard: Any, jobs: Any) -> None:
            await tokenizer_is_open.wait()
            raise OctavoError("shard.network", "It did not come.")

        def close(self) -> None:
            closed.append("device")
            super().close()

    class Host(NativeHost):
        async def open_tokenizer(self, json_text: str) -> Encoder:
            encoder = await super().open_tokenizer(json_text)
            monkeypatch.setattr(encoder, "close", lambda: closed.append("tokenizer"))
            tokenizer_is_open.set()
            return encoder

    async def run() -> None:
        with pytest.raises(OctavoError) as caught:
            host = Host(TINY, device=Failing())
            await loader.load(host, LoadConfig(context=64), lambda *_: None)
        assert caught.value.code == "shard.network"
        assert host.cancelled and closed == ["device", "tokenizer"]

    tokenizer_is_open = asyncio.Event()
    asyncio.run(run())


class FakeGpu:
    """As much of the player as a WebGpuDevice asks before it allocates."""

    def describe(self) -> str:
        return (
            '{"name": "small", "software": false, "subgroup": 32, "max_binding_bytes": 20000,'
            ' "max_buffer_bytes": 40000, "workgroup_bytes": 16384}'
        )

    def useRepacks(self, kernels: str) -> None:  # noqa: N802
        assert "repack_q4_0" in kernels


def test_a_model_too_large_for_the_adapter() -> None:
    async def run() -> None:
        device = WebGpuDevice(FakeGpu(), "auto")
        tensors = [Tensor("k.0", (20, 2, 16, 16), "f16", "kv")]
        for early in (True, False):
            with pytest.raises(OctavoError) as caught:
                if early:
                    device.needs(tensors, ())
                else:
                    await device.allocate(tensors)
            assert caught.value.code == "gpu.limits"
            assert "20,480" in caught.value.message
            assert "20,000" in caught.value.message

    asyncio.run(run())


def test_shards_too_large_for_the_adapter() -> None:
    """They are bound as a whole, with the end of the one before."""
    device = WebGpuDevice(FakeGpu(), "auto")
    assert device.needs((), (), [100, 20_000 - CARRY]) > 80_000
    with pytest.raises(OctavoError) as caught:
        device.needs((), (), [100, 20_004 - CARRY])
    assert caught.value.code == "gpu.limits"
    assert "19,492" in caught.value.message


def test_traits_of_adapters() -> None:
    description = {
        "name": "x",
        "software": False,
        "subgroup": 32,
        "max_binding_bytes": 1,
        "max_buffer_bytes": 1,
        "workgroup_bytes": 1,
    }
    real = traits_of(description, "auto")
    assert (real.subgroup, real.barriers, real.activations) == (32, True, "q16")
    assert traits_of(description | {"subgroup": 4}, "auto").subgroup == 0
    soft = traits_of(description | {"software": True, "subgroup": 4}, "auto")
    assert (soft.subgroup, soft.barriers, soft.activations) == (0, False, "q16")
    assert traits_of(description | {"software": True}, "f32").activations == "f32"
    assert replace(real, chunk=1).chunk == 1


@pytest.mark.parametrize(
    ("asked", "large", "software", "taken"),
    [
        ("auto", True, False, "q8"),
        ("auto", False, False, "q16"),
        ("auto", True, True, "q16"),
        ("q16", True, False, "q16"),
    ],
)
def test_large_models_take_bytes_as_activations(
    monkeypatch: pytest.MonkeyPatch, asked: Activations, large: bool, software: bool, taken: str
) -> None:
    monkeypatch.setattr(loader, "right_plans", unchecked)
    monkeypatch.setattr(loader, "BYTE_ACTIVATIONS_FROM", 1 if large else 1 << 40)
    device = NullDevice(Traits("webgpu", software=software, activations="q16", chunk=16))

    async def run() -> None:
        config = LoadConfig(context=64, activations=asked, tune=False)
        model = await loader.load(NativeHost(TINY, device=device), config, lambda *_: None)
        terms = {c.shader.consts.get("TERMS") for c in model.plans[PREFILL].calls if c.shader}
        assert terms - {None} == {1 if taken == "q8" else 2}
        assert describe(model)["device"]["activations"] == taken

    asyncio.run(run())


def test_errors_of_javascript_keep_their_code() -> None:
    class JsError(Exception):
        code = "shard.hash"
        message = "Shard 3 does not match."

    assert as_octavo_error(JsError()).code == "shard.hash"
    assert as_octavo_error(JsError()).message == "Shard 3 does not match."
    assert as_octavo_error(KeyError("x")).code == "internal"


def test_every_code_has_a_sentence() -> None:
    assert all(text.endswith(".") and code.islower() for code, text in CODES.items())
