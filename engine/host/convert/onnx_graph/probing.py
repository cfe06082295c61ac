"""Parts of a graph, computed on numbers that are made up: what a part means shows in what it
computes, however it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.backends.base import weights_of
from engine.backends.cpu import CpuDevice
from engine.graph.axes import axes_of, value_of
from engine.graph.facts import infer
from engine.graph.lowering import record
from engine.graph.model import Graph, Value
from engine.graph.passes.linear import LINEAR
from engine.graph.passes.rewriting import without_dead
from engine.graph.running import compute, state_of, write_known
from engine.host.convert.onnx_graph.skeleton import EMBED, IDS, UnlikeError
from engine.host.convert.onnx_graph.tensors import stored

MASK, POSITIONS = "attention_mask", "position_ids"
Floats = Any  # a NumPy array of float32


@dataclass(frozen=True)
class Part:
    """Nodes between given values and one output; ``given`` are those of the graph's inputs that
    they read."""

    graph: Graph
    given: tuple[str, ...]


class Probe:
    """A graph at one sequence of ``count`` tokens behind ``past`` ones, whose keys and values the
    caller makes up: heads, each ``width`` wide."""

    def __init__(self, graph: Graph, count: int, past: int, heads: int, width: int) -> None:
        self.count, self._graph = count, graph
        cached = any(_is_cache(value) for value in graph.inputs)
        self.past = past if cached else 0
        self._wanted = {value.name: self._shape(value, heads, width) for value in graph.inputs}
        self._sizes = self._lengths()
        self._facts = infer(graph, self._sizes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(int(size) for size in self._facts[name].shape)  # type: ignore[arg-type]

    def part(self, start: Sequence[str], end: str) -> Part:
        """What lies between values and one that is made of them.

        Raises UnlikeError where it depends on other products.
        """
        cut = set(start)
        nodes = tuple(n for n in self._graph.nodes if not cut.intersection(n.outputs))
        values = tuple(Value(name, "f32", self.shape(name)) for name in start)
        inputs = (*(v for v in self._graph.inputs if v.name not in cut), *values)
        graph = without_dead(replace(self._graph, inputs=inputs, outputs=(end,), nodes=nodes))
        for node in graph.nodes:
            if node.op in (LINEAR, EMBED):
                raise UnlikeError(f"{end!r} depends on {node.label}.")
        read = {end, *(name for node in graph.nodes for name in node.inputs)}
        used = tuple(value for value in inputs if value.name in read)
        given = tuple(value.name for value in used if value not in values)
        return Part(replace(graph, inputs=used), given)

    def compute(self, part: Part, values: Mapping[str, Floats]) -> Floats:
        """What a part makes of values; the graph's inputs that ``values`` lacks are those of a
        sequence without padding."""

        async def run() -> Any:
            device = CpuDevice()
            made = record(part.graph, self._sizes, device.traits)
            weights = weights_of([made.plan])
            await device.allocate([*weights, *state_of(made)])
            for weight in weights:
                device.write(weight, stored(part.graph.constants[weight.name]).tobytes())
            await device.compile([made.plan], lambda *_: None)
            write_known(device, made)
            feeds = {name: self._feed(name, values).tobytes() for name in made.inputs}
            found = await compute(device, made, feeds)
            return np.frombuffer(found[part.graph.outputs[0]], np.float32)

        return asyncio.run(run()).reshape(self.shape(part.graph.outputs[0]))

    def _feed(self, name: str, values: Mapping[str, Floats]) -> Any:
        if name in values:
            return np.ascontiguousarray(values[name], np.float32)
        shape = self._wanted[name]
        if name == POSITIONS:
            return np.arange(self.past, self.past + self.count, dtype=np.int32).reshape(shape)
        return np.full(shape, int(name == MASK), np.int32)

    def _shape(self, value: Value, heads: int, width: int) -> tuple[int, ...]:
        if _is_cache(value):
            return (1, heads, self.past, width)
        lengths = {IDS: self.count, POSITIONS: self.count, MASK: self.past + self.count}
        if value.name not in lengths:
            raise UnlikeError(f"nothing is known of the input {value.name!r}.")
        return (1, lengths[value.name])

    def _lengths(self) -> dict[str, int]:
        """How long each axis is for the inputs to have the shapes that are wanted."""
        found: dict[str, int] = {}
        for value in self._graph.inputs:
            wanted = self._wanted[value.name]
            if len(value.shape) == len(wanted):
                for size, length in zip(value.shape, wanted, strict=True):
                    if {str(size)} == axes_of(size):
                        found.setdefault(str(size), length)
        for value in self._graph.inputs:
            known = all(axes_of(size) <= found.keys() for size in value.shape)
            shape = tuple(value_of(size, found) for size in value.shape) if known else None
            if shape != self._wanted[value.name]:
                shown = ", ".join(map(str, value.shape))
                raise UnlikeError(
                    f"the input {value.name!r} is ({shown}), not {self._wanted[value.name]}."
                )
        return found


def _is_cache(value: Value) -> bool:
    """Whether an input holds keys or values of earlier tokens: (batch, heads, tokens, width)."""
    return len(value.shape) == 4 and value.dtype == "f32"


def caches(part: Part) -> list[str]:
    """The keys and values of earlier tokens that a part reads."""
    inputs = {value.name: value for value in part.graph.inputs}
    return [name for name in part.given if _is_cache(inputs[name])]
