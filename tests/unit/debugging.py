"""Arguments of `debug`, and calls that compute something else."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from engine.backends.cpu import CpuDevice
from engine.plan import Call
from tests.tiny import TINY

Spoil = Callable[[Mapping[str, Any]], None]


def arguments(**changed: Any) -> Namespace:
    """Those of the command: the tiny model on a CPU that computes with NumPy."""
    given = {
        "model": TINY,
        "compare": True,
        "prompt": "How do you find the ship on the shore?",  # in two chunks
        "raw": False,
        "device": "cpu",
        "layer": None,
        "all": False,
        "steps": 1,
        "context": 256,
        "activations": "f32",
        "kv_precision": "f16",
        "looser": 1.0,
        "chromium_flag": [],
    }
    return Namespace(**{**given, **changed})


def plant(patch: pytest.MonkeyPatch, at: Callable[[Call], bool], spoil: Spoil) -> None:
    """From now on calls of the CPU device for which ``at`` holds compute something else."""
    original = CpuDevice._bind

    def bind(self: CpuDevice, call: Call, arrays: Mapping[str, Any]) -> Any:
        right = original(self, call, arrays)
        return [*right, lambda: spoil(arrays)] if at(call) else right

    patch.setattr(CpuDevice, "_bind", bind)
