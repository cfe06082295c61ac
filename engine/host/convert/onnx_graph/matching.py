"""Whether what lies between the products of a graph is what the engine would compute there, and
which product is which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from engine.graph.model import CONTRIB, Constant, Graph, Node
from engine.host.convert.onnx_graph.glue import Floats, Heads, gated, rms_norm
from engine.host.convert.onnx_graph.probing import Part, Probe, behind, caches
from engine.host.convert.onnx_graph.skeleton import Layer, Skeleton, UnlikeError
from engine.host.errors import HostError

NEAR, FAR = 8, 4200  # tokens of a short sequence, and of one that is longer than common windows
FAR_SCORES = 600  # of one whose scores are all computed
CLOSE, ROUGH = 5e-3, 5e-2  # of the largest number; angles of far positions are rounded
NORMS = ("RMSNorm", "SimplifiedLayerNormalization", "RMSNormalization")
ATTENTION = f"{CONTRIB}.GroupQueryAttention"
TABLES = {ATTENTION: 7, f"{CONTRIB}.RotaryEmbedding": 2}  # inputs with cosines, then sines
Place = tuple[str, int]  # what a product makes, and the first of its rows


@dataclass(frozen=True)
class Matched:
    """Where a layer has the rows of Q, K and V, and of gate and up; and the gains of its norms."""

    qkv: tuple[Place, ...]
    units: tuple[Place, ...]
    attention_norm: Floats
    unit_norm: Floats
    gains: tuple[Floats, Floats] | None


class Matcher:
    """Compares the parts of a graph with their definitions.

    ``heads`` are those that are expected, ``rope`` the table of all positions up to ``context``,
    (positions, width / 2, 2).
    """

    def __init__(
        self,
        graph: Graph,
        skeleton: Skeleton,
        heads: Heads,
        rope: Floats,
        context: int,
        head_norm: bool,
    ) -> None:
        self._graph, self._skeleton = graph, skeleton
        self._heads, self._rope, self._context = heads, rope, context
        self._head_norm = head_norm
        self._random = np.random.default_rng(0)
        self._checked: set[tuple[str, ...]] = set()
        near = min(NEAR, context // 2)
        self._near = Probe(graph, near, min(3, context - near), heads.keys, heads.width)
        length = min(FAR if self._near.past else FAR_SCORES, context)
        count = 3 if self._near.past else length
        self._far = Probe(graph, count, length - count, heads.keys, heads.width)
        self._seen = length

    def layer(self, index: int) -> Matched:
        """A layer. Raises UnlikeError where it computes something else, and HostError where its
        rotary tables are not those that are expected."""
        layer, stream = self._skeleton.layers[index], self._skeleton.stream
        attention_norm = self.norm(stream(index), layer.qkv[0].inputs[0])
        unit_norm = self.norm(stream(index, units=True), layer.units[0].inputs[0])
        qkv, gains = self._attention(layer)
        return Matched(qkv, self._units(layer), attention_norm, unit_norm, gains)

    def norm(self, stream: list[str], end: str) -> Floats:
        """The gain of the norm between the sum of ``stream`` and ``end``, (width,)."""
        probe, eps = self._near, self._heads.eps
        part = probe.part(stream, end)
        node = _norm_of(part.graph, end)
        shapes = [probe.shape(name) for name in stream]
        width = shapes[0][-1]
        gain = _gain(part.graph, node, width)
        if any(prod(s) != probe.count * width or s[-1] != width for s in shapes):
            raise UnlikeError(f"{node.label} does not read a sum of one vector for each token.")
        # So small that eps counts.
        spread = np.sqrt(eps / len(stream))
        values = {name: spread * self._normal(probe.shape(name)) for name in stream}
        total = sum(x.reshape(-1, width) for x in values.values())
        wanted = rms_norm(total, gain, eps)
        got = probe.compute(part, values).reshape(-1, width)
        # Of a prompt, the head may see the last token alone.
        if not _same(got, wanted[-len(got) :], CLOSE) or len(got) not in (1, len(wanted)):
            raise UnlikeError(f"{node.label} is not the RMS norm of the sum in front of it.")
        return gain

    def end(self, head: Node, logits: str) -> None:
        """Raises UnlikeError unless the head's product gives the logits as they are."""
        (name,) = head.outputs
        part = self._near.part([name], logits)
        values = 30 * self._normal(self._near.shape(name))
        if not _same(self._near.compute(part, {name: values}).ravel(), values.ravel(), 1e-6):
            raise UnlikeError(f"{head.label} is not the last that is done for the logits.")

    def _units(self, layer: Layer) -> tuple[Place, ...]:
        probe, names = self._near, [node.outputs[0] for node in layer.units]
        part = probe.part(names, layer.down.inputs[0])
        values = {n: self._normal(probe.shape(n)) * self._wide(probe.shape(n)) for n in names}
        got = probe.compute(part, values)
        found = list(_parts(layer.units, values, 2))
        for one, other in permutations(found):
            if one[1].shape == other[1].shape and _same(got, gated(one[1], other[1]), 1e-4):
                return one[0], other[0]
        raise UnlikeError(f"what {layer.down.label} reads is no unit that is gated by SiLU.")

    def _attention(self, layer: Layer) -> tuple[tuple[Place, ...], tuple[Floats, Floats] | None]:
        """Which rows are of Q, K and V, and the gains of normalized heads."""
        names = [node.outputs[0] for node in layer.qkv]
        end = layer.out.inputs[0]
        part = self._near.part(names, end)
        window = self._window(part, layer)
        self._check_tables(part)
        sizes = [n * self._heads.width for n in (self._heads.queries, *[self._heads.keys] * 2)]
        values = {name: self._normal(self._near.shape(name)) for name in names}
        cached = {name: self._normal(self._near.shape(name)) for name in caches(part)}
        got = self._near.compute(part, {**values, **cached})
        wide = list(_parts(layer.qkv, values, sizes))
        orders = [tuple(wide)] if len(layer.qkv) == 1 else list(permutations(wide))
        for roles in orders:
            if [x.shape[-1] for _, x in roles] != sizes:
                continue
            if any(x.size != self._near.count * x.shape[-1] for _, x in roles):
                continue
            places = tuple(place for place, _ in roles)
            gains = self._gains(part, places) if self._head_norm else None
            heads = replace(self._heads, gains=gains, window=window)
            for old in permutations(cached) if cached else [()]:
                if _same(got, self._expected(self._near, heads, roles, cached, old), CLOSE):
                    self._check_far(layer, heads, places, old)
                    return places, gains
        raise UnlikeError(
            f"what {layer.out.label} reads is not the attention that config.json describes."
        )

    def _check_far(
        self,
        layer: Layer,
        heads: Heads,
        places: tuple[Place, ...],
        old: tuple[str, ...],
    ) -> None:
        """Raises UnlikeError unless a long sequence is like the short one."""
        probe, names = self._far, [node.outputs[0] for node in layer.qkv]
        part = probe.part(names, layer.out.inputs[0])
        # Large scores, so that few tokens count and it shows which.
        values = {name: 2 * self._normal(probe.shape(name)) for name in names}
        cached = {name: 2 * self._normal(probe.shape(name)) for name in old}
        sizes = [n * heads.width for n in (heads.queries, *[heads.keys] * 2)]
        found = dict(_parts(layer.qkv, values, sizes))
        roles = tuple((place, found[place]) for place in places)
        got = probe.compute(part, {**values, **cached})
        if not _same(got, self._expected(probe, heads, roles, cached, old), ROUGH):
            raise UnlikeError(f"what {layer.out.label} reads differs in long texts.")

    def _expected(
        self,
        probe: Probe,
        heads: Heads,
        roles: tuple[tuple[Place, Floats], ...],
        cached: Mapping[str, Floats],
        old: tuple[str, ...],
    ) -> Floats:
        q, k, v = (x.reshape(-1, x.shape[-1]) for _, x in roles)
        none = np.zeros((heads.keys, 0, heads.width), np.float32)
        past = tuple(cached[name][0] for name in old) or (none, none)
        rope = self._rope[: probe.past + probe.count]
        return heads.attention(q, k, v, (past[0], past[1]), rope)

    def _window(self, part: Part, layer: Layer) -> int:
        """The window that the part should have: nodes say it, or the long sequence shows it."""
        wanted = self._heads.window if self._heads.window < self._context else 0
        said = [node for node in part.graph.nodes if node.op == ATTENTION]
        for node in said:
            size: Any = node.attributes.get("local_window_size", -1)
            if max(size, 0) != self._heads.window and (wanted or 0 < size < self._context):
                raise UnlikeError(f"{node.label} sees {size} tokens, not {self._heads.window}.")
        if wanted >= self._seen and not said:
            raise UnlikeError(f"the window of {layer.out.label} is too long to be checked.")
        return wanted

    def _check_tables(self, part: Part) -> None:
        """Raises HostError for tables of cosines and sines that are not those of the engine."""
        for node in part.graph.nodes:
            first = TABLES.get(node.op)
            names = node.inputs[first : first + 2] if first is not None else ()
            tables = [part.graph.constants.get(name) for name in names]
            if len(tables) < 2 or not all(names) or names in self._checked:
                continue
            self._checked.add(names)
            for table, name, column in zip(tables, names, (0, 1), strict=True):
                if table is None:
                    raise UnlikeError(f"{node.label} computes its tables.")
                self._check_table(node, name, array_of(table), self._rope[..., column])

    def _check_table(self, node: Node, name: str, table: Floats, wanted: Floats) -> None:
        rows = min(len(table), len(wanted))
        if table.ndim != 2 or table.shape[1] != wanted.shape[1]:
            reason = f"{table.shape[1:]} columns, not {wanted.shape[1]}"
        else:
            # Angles may have been computed in f32, and rounded to halves.
            allowed = 1e-3 + np.arange(rows, dtype=np.float32)[:, None] * 2.0**-22
            off = np.abs(table[:rows] - wanted[:rows]) > allowed
            if not off.any():
                return
            reason = f"other numbers from position {int(np.argwhere(off)[0][0])} on"
        raise HostError(
            f"{node.label}: the table {name!r} has {reason} than the rotary embedding that "
            "config.json describes (rope_theta, rope_scaling)."
        )

    def _gains(self, part: Part, places: tuple[Place, ...]) -> tuple[Floats, Floats]:
        """The gains of the norms of the heads of Q and K."""
        found = []
        for name, _ in places[:2]:
            norms = [n for n in behind(part, name) if n.op.endswith(NORMS)]
            if len(norms) != 1:
                raise UnlikeError(f"the heads of {name!r} have {len(norms)} norms, not one.")
            eps: Any = norms[0].attributes.get("epsilon", 1e-5)
            if abs(eps - self._heads.eps) > 1e-3 * self._heads.eps:
                raise UnlikeError(f"{norms[0].label} has the epsilon {eps:g}.")
            found.append(_gain(part.graph, norms[0], self._heads.width))
        return found[0], found[1]

    def _normal(self, shape: tuple[int, ...]) -> Floats:
        return self._random.standard_normal(shape, np.float32)

    def _wide(self, shape: tuple[int, ...]) -> Floats:
        """Factors from a hundredth to ten."""
        return np.float32(10) ** self._random.uniform(-2, 1, shape).astype(np.float32)


def _same(got: Floats, wanted: Floats, tolerance: float) -> bool:
    """Whether numbers are the same, but for so much of the largest; shapes may group them."""
    if got.size != wanted.size:
        return False
    largest = float(np.abs(wanted).max(initial=1e-30))
    return bool(np.abs(got.reshape(wanted.shape) - wanted).max(initial=0) <= tolerance * largest)


def _parts(nodes: tuple[Node, ...], values: Mapping[str, Floats], sizes: Any) -> Any:
    """What each part of some products has made: its place and (..., rows). One product for
    all has them below each other: ``sizes`` are their rows, or how many are alike."""
    if len(nodes) > 1:
        for node in nodes:
            yield (node.outputs[0], 0), values[node.outputs[0]]
        return
    (name,) = nodes[0].outputs
    whole = values[name]
    count = whole.shape[-1]
    sizes = [count // sizes] * sizes if isinstance(sizes, int) else sizes
    start = 0
    for size in sizes:
        yield (name, start), whole[..., start : start + size]
        start += size


def _norm_of(graph: Graph, end: str) -> Node:
    """The norm that makes a value; rows of it may have been taken."""
    makers, name = graph.makers(), end
    while node := makers.get(name):
        if node.op.endswith(NORMS):
            return node
        name = node.inputs[0]
    raise UnlikeError(f"no RMS norm makes {end!r}.")


def _gain(graph: Graph, norm: Node, width: int) -> Floats:
    """The one constant vector that a norm reads."""
    found = [graph.constants[name] for name in norm.inputs if name in graph.constants]
    if len(found) != 1 or found[0].shape != (width,):
        raise UnlikeError(f"{norm.label} has not one vector as its gain.")
    return array_of(found[0])


def longest_table(graph: Graph) -> int:
    """The positions that the longest rotary table has, 0 without any."""
    found = [
        graph.constants[name].shape[0]
        for node in graph.nodes
        for name in node.inputs[TABLES.get(node.op, len(node.inputs)) :][:2]
        if name in graph.constants and graph.constants[name].shape
    ]
    return max(found, default=0)


def array_of(constant: Constant) -> Floats:
    """The elements of a constant that is not quantized, f32."""
    if constant.array is not None:
        return np.asarray(constant.array, np.float32)
    assert constant.value
    return np.array(constant.value.data, np.float32).reshape(constant.shape)
