"""`build.py convert`: golden models come back, whole or not at all, in little memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import TensorSpec, serialize_file

from engine.answer import Answer
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.host import cli
from engine.host.convert import command, conversion, quants, writing
from engine.host.convert.conversion import Places, convert
from engine.host.errors import HostError
from engine.host.shards import SHARD_SIZE
from tests import hugging_face
from tests.conftest import ROOT
from tests.hugging_face import GOLDEN, write_folder, write_json, write_weights
from tests.native import NativeHost
from tests.splitting import split

QUANTS = {"tiny": "q4_1", "tiny_qwen2": "q4_0", "tiny_llama3": "q4_0", "tiny_qwen3": "q4_0"}


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Name -> type, shape and bytes."""
    return {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in gguf.GGUFReader(path).tensors
    }


def metadata(path: Path) -> dict[str, tuple[Any, Any]]:
    fields = gguf.GGUFReader(path).fields.values()
    return {f.name: (f.contents(), f.types) for f in fields if not f.name.startswith("GGUF.")}


def greedy(path: Path, prompt: list[int], count: int) -> list[int]:
    async def run() -> list[int]:
        engine = Engine(NativeHost(path))
        await engine.load(LoadConfig(context=512), lambda *_: None)
        async for event in engine.complete(prompt, GenerateConfig(max_tokens=count)):
            if isinstance(event, Answer):
                return event.ids
        raise AssertionError("no answer")

    return asyncio.run(run())


def golden_prompts(name: str) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())["prompts"]
    return prompts


def joined(places: Places) -> bytes:
    """The shards of a manifest, checked."""
    manifest = json.loads((places.shards / "manifest.json").read_text())
    pieces = [(places.shards / shard["name"]).read_bytes() for shard in manifest["shards"]]
    data = b"".join(pieces)
    for shard, piece in zip(manifest["shards"], pieces, strict=True):
        assert shard["size"] == len(piece)
        assert shard["sha256"] == hashlib.sha256(piece).hexdigest()
    assert manifest["size"] == len(data)
    assert manifest["sha256"] == hashlib.sha256(data).hexdigest()
    assert manifest["file"] == places.gguf.name
    assert manifest["id"] == places.shards.name
    return data


@pytest.mark.golden
@pytest.mark.parametrize("name", QUANTS)
@pytest.mark.parametrize("files", [1, 3])
def test_golden_models_come_back_to_the_bit(name: str, files: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / name, name, files)
    places = convert(folder, tmp_path / "out", QUANTS[name])
    assert tensors(places.gguf) == tensors(GOLDEN / f"{name}.gguf")
    expected, found = metadata(GOLDEN / f"{name}.gguf"), metadata(places.gguf)
    for key, value in expected.items():
        if key not in ("general.name", "general.license"):
            assert found[key] == value, key
    assert joined(places) == places.gguf.read_bytes()


@pytest.mark.golden
@pytest.mark.parametrize("name", [*QUANTS, "tiny_untied"])
def test_unquantized_models_give_the_golden_ids(name: str, tmp_path: Path) -> None:
    places = convert(write_folder(tmp_path / name, name), tmp_path / "out")
    assert {kind for kind, *_ in tensors(places.gguf).values()} == {"F32"}
    prompt = golden_prompts(name)[0]
    assert greedy(places.gguf, prompt["prompt_ids"], 200) == prompt["ids"]


def test_a_tied_output_matrix_is_written_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "tiny")
    found = hugging_face.weights("tiny")
    write_weights(folder, found | {"lm_head.weight": found["model.embed_tokens.weight"]})
    assert "output.weight" not in tensors(convert(folder, tmp_path / "out").gguf)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_types_of_safetensors(dtype: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "tiny")
    found = hugging_face.weights("tiny")
    if dtype == "bfloat16":  # NumPy has none: the upper half of a float32
        stored = {k: (v.view(np.uint32) >> 16).astype(np.uint16) for k, v in found.items()}
        wanted = {k: (v.astype(np.uint32) << 16).view(np.float32) for k, v in stored.items()}
    else:
        stored = {k: v.astype(dtype) for k, v in found.items()}
        wanted = {k: v.astype(np.float32) for k, v in stored.items()}
    specs = {
        name: TensorSpec(
            dtype=dtype, shape=list(v.shape), data_ptr=v.ctypes.data, data_len=v.nbytes
        )
        for name, v in stored.items()
    }
    serialize_file(specs, folder / "model.safetensors")
    kind = {"bfloat16": "BF16", "float16": "F16", "float64": "F32"}[dtype]
    written = {t.name: t for t in gguf.GGUFReader(convert(folder, tmp_path / "out").gguf).tensors}
    norm, matrix = written["output_norm.weight"], written["blk.1.ffn_down.weight"]
    assert (norm.tensor_type.name, matrix.tensor_type.name) == ("F32", kind)
    assert np.array_equal(norm.data, wanted["model.norm.weight"])
    values = gguf.quants.dequantize(matrix.data, matrix.tensor_type)
    assert np.array_equal(values, wanted["model.layers.1.mlp.down_proj.weight"])


@pytest.mark.parametrize("quant", [*quants.QUANTS, None])
def test_the_engine_runs_every_type(quant: str | None, tmp_path: Path) -> None:
    """From a folder, and from what comes of it."""
    folder = write_folder(tmp_path / "tiny_qwen2", "tiny_qwen2")
    places = convert(folder, tmp_path / "out", quant)
    assert len(greedy(places.gguf, [5, 6, 7], 4)) == 4
    exact = convert(folder, tmp_path / "exact", "f32")
    again = convert(exact.gguf, tmp_path / "again", quant)
    assert tensors(again.gguf) == tensors(places.gguf)
    if quant:
        file_type = int(quants.QUANTS[quant][2])
        assert metadata(places.gguf)["general.file_type"][0] == file_type
        assert metadata(again.gguf)["general.file_type"][0] == file_type


def test_a_gguf_file_is_copied_bit_by_bit(tmp_path: Path) -> None:
    places = convert(GOLDEN / "tiny_qwen3.gguf", tmp_path / "out")
    assert places.gguf.name == "tiny_qwen3.gguf"
    assert places.gguf.read_bytes() == (GOLDEN / "tiny_qwen3.gguf").read_bytes() == joined(places)


def test_quantizing_a_gguf_file_keeps_what_it_says(tmp_path: Path) -> None:
    source = GOLDEN / "tiny_llama3.gguf"
    places = convert(source, tmp_path / "out", "q8_0")
    before, after = metadata(source), metadata(places.gguf)
    assert {key: after[key] for key in before} == before
    assert set(after) - set(before) == {"general.file_type", "general.quantization_version"}
    old, new = tensors(source), tensors(places.gguf)
    for name, (kind, shape, data) in new.items():
        if len(shape) == 1 or old[name][0] == "Q8_0":
            assert (kind, shape, data) == old[name]
        else:
            assert kind == "Q8_0"
    manifest = json.loads((places.shards / "manifest.json").read_text())
    assert (manifest["id"], manifest["name"]) == ("tiny_llama3-q8_0", "tiny_llama3 (Q8_0)")
    assert (manifest["source"], manifest["license"]) == ("tiny_llama3.gguf", "apache-2.0")


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A golden model in several files, by the `gguf` package's own splitting."""
    (tmp_path / "whole").mkdir()
    whole = shutil.copy(GOLDEN / "tiny_qwen2.gguf", tmp_path / "whole/x.gguf")
    return split(whole, tmp_path, most_tensors=16)


@pytest.mark.parametrize("which", [0, 1])
def test_a_split_file_is_joined(parts: list[Path], which: int, tmp_path: Path) -> None:
    places = convert(parts[which], tmp_path / "out")
    assert places.gguf.name == "x.gguf"
    assert tensors(places.gguf) == tensors(GOLDEN / "tiny_qwen2.gguf")
    expected, found = metadata(GOLDEN / "tiny_qwen2.gguf"), metadata(places.gguf)
    assert {key: found[key] for key in expected} == expected
    assert not any(key.startswith("split.") for key in found)


def test_a_missing_part_is_named(parts: list[Path], tmp_path: Path) -> None:
    parts[1].unlink()
    with pytest.raises(HostError, match=parts[1].name):
        convert(parts[0], tmp_path / "out")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    for kept in ("tiny.gguf", "tiny"):
        out = tmp_path / kept / "out"
        out.mkdir(parents=True)
        (out / kept).mkdir() if kept == "tiny" else (out / kept).write_text("mine")
        with pytest.raises(HostError, match="exists"):
            convert(GOLDEN / "tiny.gguf", out)
        assert [path.name for path in out.iterdir()] == [kept]


def test_without_room_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=150_000)
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: usage)
    for quant in (None, "q8_0"):
        with pytest.raises(HostError, match=r"0\.\d MB are needed.*and 0\.1 MB are free"):
            convert(GOLDEN / "tiny.gguf", tmp_path / "out", quant)
        assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(conversion.shards, "cut_unpinned", fails)
    with pytest.raises(HostError, match="the disk is gone"):
        convert(GOLDEN / "tiny.gguf", tmp_path / "out", "q8_0")
    assert list((tmp_path / "out").iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from engine.host import shards
from engine.host.convert import conversion, quants

def dies(*arguments, real=getattr(*WHERE)):
    if not COUNT.pop():
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(*WHERE, dies)
conversion.convert(Path(sys.argv[1]), Path(sys.argv[2]), "q8_0")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("where", ['(quants, "packed")', '(shards, "write_whole")'])
def test_a_killed_conversion_leaves_no_half_file(where: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = KILLED.replace("COUNT", "count").replace("*WHERE", f"*{where}")
    script = script.replace("import os,", "count = [0, 1]\nimport os,", 1)
    arguments = [str(GOLDEN / "tiny.gguf"), str(out)]
    result = subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, timeout=120)
    assert result.returncode == -signal.SIGKILL
    left = {path.name for path in out.iterdir()}
    assert left and all(name.endswith(".part") for name in left)
    assert cli.main(["convert", *arguments, "--quant", "q8_0"]) == 0
    assert {path.name for path in out.iterdir()} == {"tiny-q8_0", "tiny-q8_0.gguf"}


MEASURED = """
import sys, tracemalloc
from pathlib import Path
from engine.host.convert import conversion, writing

def measured(*arguments, write=writing.write):
    tracemalloc.start()  # the tokenizer is read by now
    write(*arguments)
    print(tracemalloc.get_traced_memory()[1])

writing.write = measured
conversion.convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
print(tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.parametrize("quant", ["f32", "q8_0", "q4_k"])
def test_memory_stays_far_below_the_largest_tensor(quant: str, tmp_path: Path) -> None:
    """Rows are read, packed and written some at a time, and so are shards."""
    large = write_folder(tmp_path / "large", "tiny")
    wide = 256 * 800
    fields = {"intermediate_size": wide, "num_hidden_layers": 1}
    write_json(large / "config.json", hugging_face.config("tiny") | fields)
    weights = hugging_face.weights("tiny").items()
    found = {name: values for name, values in weights if ".1." not in name and ".2." not in name}
    up, down = (np.full(shape, 0.5, np.float32) for shape in ((wide, 64), (64, wide)))
    for name in [name for name in found if ".mlp." in name]:
        found[name] = down if "down" in name else up
    write_weights(large, found)
    arguments = [large, tmp_path / "out", quant]
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, timeout=280, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    packing, whole = (int(line) for line in result.stdout.splitlines() if line.isdigit())
    assert 1e6 < packing < up.nbytes / 2
    assert whole < 3 * SHARD_SIZE


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported.*Qwen3"),
        ({"architectures": None}, "not supported"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers should be a number above 0, not '3'"),
        ({"num_hidden_layers": 2}, "no use for the tensor model.layers.2"),
        ({"num_hidden_layers": 4}, r"blk\.3"),
        ({"hidden_size": None}, "hidden_size"),
        ({"tie_word_embeddings": False}, r"output\.weight"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"num_attention_heads": 7}, "7 heads"),
        ({"partial_rotary_factor": "all"}, "partial_rotary_factor"),
        ({"rope_local_base_freq": -1}, "rope_local_base_freq"),
    ],
)
def test_a_wrong_config_is_told(fields: dict[str, Any], match: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "tiny")
    write_json(folder / "config.json", hugging_face.config("tiny") | fields)
    with pytest.raises(HostError, match=match):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "model-00002-of-00003.safetensors"]
)
def test_a_missing_file_is_named(file: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "tiny", 3)
    (folder / file).unlink()
    with pytest.raises(HostError, match=file):
        convert(folder, tmp_path / "out")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "tiny")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for data in (whole[:-1000], whole[:500], b"", b"\xff" * 100, whole[:8] + b"[" + whole[9:]):
        weights.write_bytes(data)
        with pytest.raises(HostError, match=r"model\.safetensors"):
            convert(folder, tmp_path / "out")
    (folder / "config.json").write_text("{")
    with pytest.raises(HostError, match=r"config\.json"):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize("length", [0, 3, 100, 5000, 100_000])
def test_a_gguf_file_that_ends_too_early(length: int, tmp_path: Path) -> None:
    source = tmp_path / "cut.gguf"
    source.write_bytes((GOLDEN / "tiny.gguf").read_bytes()[:length])
    with pytest.raises(HostError, match=r"cut\.gguf"):
        convert(source, tmp_path / "out", "q8_0")


def test_other_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_text("")
    for name, match in {"x.bin": "neither", "none.gguf": "missing"}.items():
        with pytest.raises(HostError, match=match):
            convert(tmp_path / name, tmp_path / "out")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(HostError, match="'bert' is not supported"):
        convert(tmp_path / "other.gguf", tmp_path / "out")


def test_the_command_line_needs_no_packages() -> None:
    """They are installed only for the command itself."""
    script = "import sys, engine.host.convert.command as c; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0


def test_the_command_says_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(command.pip, "install", lambda lock, title: installed.append(lock.name))
    arguments = ["convert", str(GOLDEN / "tiny.gguf"), str(tmp_path), "--quant", "q8_0"]
    assert cli.main(arguments) == 0
    assert installed == ["requirements-convert.lock"]
    shown = capsys.readouterr().out
    assert str(tmp_path / "tiny-q8_0" / "manifest.json") in shown
    assert "Writing tiny-q8_0.gguf" in shown
    with pytest.raises(SystemExit):
        cli.main([*arguments[:-1], "q9_9"])
