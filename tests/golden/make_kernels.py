"""Writes kernels.json: what the NumPy references make of each case of engine/cases.py. The weights
are dequantized by the `gguf` package.

    python -m tests.golden.make_kernels
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import gguf
import numpy as np

from engine.cases import Case, all_cases, blocks, content
from engine.plan import Tensor, Traits, Weight
from engine.weights.quants import QUANTS
from tests.conftest import ROOT

PATH = ROOT / "tests/golden/kernels.json"
CPU = Traits("cpu", "references", barriers=False)


def outcome(case: Case) -> np.ndarray:
    """All values that come out, flat f32."""
    plan, y = case.plan(CPU)
    held: dict[str, Any] = {}
    for call in plan.calls:
        for tensor in call.args.values():
            if tensor.name not in held:
                held[tensor.name] = _initial(tensor, case)
        call.reference({arg: held[t.name] for arg, t in call.args.items()})
    return held[y.name].astype(np.float32).ravel()


def _initial(tensor: Tensor, case: Case) -> np.ndarray:
    if isinstance(tensor, Weight):
        kind = gguf.GGMLQuantizationType[tensor.quant]
        raw = np.frombuffer(blocks(tensor), np.uint8)
        rows = raw.reshape(-1, QUANTS[tensor.quant].block_bytes)
        return gguf.dequantize(rows, kind).reshape(tensor.shape).astype(np.float32)
    dtype = {"u32": np.uint32, "f16": np.float16}.get(tensor.dtype, np.float32)
    values = np.frombuffer(content(tensor, case), dtype)
    return values.reshape(tensor.shape).copy()


def main() -> None:
    """Write the file."""
    texts = {}
    for case in all_cases():
        sampled = outcome(case)[:: case.stride]
        texts[case.name] = b64encode(sampled.tobytes()).decode()
    PATH.write_text(json.dumps(texts, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
