"""`build.py debug` in real Chromium: what a kernel computes wrongly is named."""

from __future__ import annotations

import pytest

from engine import shaders
from engine.host.debug.command import main as run
from tests.unit.debugging import arguments

RIGHT = "y[base + i] = acc[i] / total;"
WRONG = "y[base + i] = acc[i] / (total * (1.0 + f32(id.x == 3u && id.y == 5u)));"
STORED = "put(is_key, row.quads + j, bytes_of(vec4<f32>(low, high), scale));"
NOT_STORED = STORED.replace("low, high", "low, select(1.0, 1.3, is_key && j == 2u) * high")


def plant(monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    """The text ``wgsl/<name>.wgsl`` is another one."""
    original = shaders.piece

    def piece(asked: str) -> str:
        text = original(asked)
        if asked != name:
            return text
        assert text.count(right) == 1
        return text.replace(right, wrong)

    monkeypatch.setattr(shaders, "piece", piece)


def test_a_wrong_key_in_bytes_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chromium_path: str,
) -> None:
    monkeypatch.setenv("OCTAVO_CHROMIUM", chromium_path)
    asked = arguments(device="gpu", activations="auto", kv_precision="q8")
    assert run(asked) == 0
    assert "nothing differs" in capsys.readouterr().out
    plant(monkeypatch, "lib/kv_bytes_store", STORED, NOT_STORED)
    assert run(asked) == 1
    said = capsys.readouterr().out
    assert "First tensor that differs: k.0 (k_pool), 2x2x16x16, u32" in said
    assert "layer 0, op rope_store, rope_store, 16 tokens" in said
    worst = next(line for line in said.splitlines() if "worst element" in line)
    assert int(worst.split("]")[0].split(",")[-1]) in (10, 11)  # the second pair of the third four


def test_a_wrong_kernel_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chromium_path: str,
) -> None:
    monkeypatch.setenv("OCTAVO_CHROMIUM", chromium_path)
    assert run(arguments(device="gpu", activations="auto")) == 0
    said = capsys.readouterr().out
    assert "nothing differs" in said and "swiftshader" in said.lower()
    plant(monkeypatch, "attention_rows", RIGHT, WRONG)
    assert run(arguments(device="gpu", activations="auto", all=True)) == 1
    said = capsys.readouterr().out
    wrong = [line.split()[3] for line in said.splitlines() if line.endswith("DIFFERS")]
    assert set(wrong) == {"attention_rows"}  # what comes after it is right about wrong inputs
    assert len(wrong) == 6  # three layers, two chunks; a token alone has no sixth row
    assert "First tensor that differs: attention.6 (y), 16x64, f32" in said
    assert "of prefill: attention_rows" in said
    assert "layer 0, op attention, attention, 16 tokens" in said
    worst = next(line for line in said.splitlines() if "worst element" in line)
    row, column = (int(part) for part in worst.split("[")[1].split("]")[0].split(","))
    assert row == 5 and 48 <= column < 64  # the fourth head of 16
