"""The golden files belong together, and the committed script makes the committed models."""

from __future__ import annotations

import hashlib
import json
import runpy
from pathlib import Path

import pytest

from tests.golden import make_tiny

HERE = Path(__file__).parent
NAMES = [*make_tiny.MODELS]
pytestmark = pytest.mark.golden


@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_the_model_byte_for_byte(name: str, tmp_path: Path) -> None:
    script = runpy.run_path(str(HERE / "make_tiny.py"))
    script["write_named"](name, tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == (HERE / f"{name}.gguf").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_was_made_from_the_model(name: str) -> None:
    document = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((HERE / f"{name}.gguf").read_bytes()).hexdigest()
    assert document["sha256"] == digest


@pytest.mark.parametrize(("name", "steps", "margin"), [(name, 200, 0.02) for name in NAMES])
def test_tiny_texts_are_varied_and_decided(name: str, steps: int, margin: float) -> None:
    for prompt in json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["prompts"]:
        assert len(prompt["ids"]) == len(prompt["margins"]) == steps
        assert min(prompt["margins"]) == prompt["min_margin"] > margin
        assert len(set(prompt["ids"])) > 60
        # No control token, at which generation would end.
        assert not make_tiny.control_ids(name) & set(prompt["ids"])
