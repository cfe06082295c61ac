"""Constant folding: what depends on constants alone is computed by ONNX's own reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import helper
from onnx.defs import onnx_opset_version
from onnx.reference import ReferenceEvaluator

from engine.graph.model import CONTRIB, OWN

LARGEST = 1 << 16  # elements that folding may add: an expanded zero stays as it is
CHANCE = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial")


class Folder:
    """Computes nodes whose inputs are among ``arrays``, which its results join."""

    def __init__(self, opsets: Mapping[str, int], arrays: dict[str, Any]) -> None:
        newest = onnx_opset_version()
        self._opsets = [helper.make_opsetid(d, min(v, newest)) for d, v in opsets.items()]
        self._arrays = arrays

    def fold(self, node: Any) -> bool:
        """Whether the node has been computed, and is needed no more."""
        names = [name for name in node.input if name]
        if node.domain in (CONTRIB, OWN) or node.op_type in CHANCE or not self._known(names):
            return False
        given = {name: self._arrays[name] for name in names}
        graph = helper.make_graph(
            [node],
            node.name,
            [
                helper.make_value_info(name, helper.make_empty_tensor_value_info(name).type)
                for name in given
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        try:
            run = ReferenceEvaluator(helper.make_model(graph, opset_imports=self._opsets))
            results: Any = run.run(None, given)
        except Exception:  # of whatever kind a node causes that is wrong: the shape rules say it
            return False
        before = sum(array.size for array in given.values())
        if any(not hasattr(r, "dtype") or r.size > max(LARGEST, 2 * before) for r in results):
            return False
        outputs = [name for name in node.output if name]
        self._arrays.update(zip(outputs, results, strict=True))
        return True

    def _known(self, names: list[str]) -> bool:
        return all(name in self._arrays for name in names)
