"""Whether what lies between the products of a graph is what the engine would compute there, and
which product is which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from engine.graph.model import CONTRIB, Constant, Graph, Node
from engine.graph.operators.sizes import CHOICE
from engine.host.convert.onnx_graph.expected import Expected
from engine.host.convert.onnx_graph.glue import Floats, Heads, rms_norm
from engine.host.convert.onnx_graph.probing import Part, Probe, caches
from engine.host.convert.onnx_graph.skeleton import Layer, Skeleton, UnlikeError
from engine.host.errors import HostError
from engine.models.rope import Rope
from engine.ops.gate import activated

NEAR, FAR = 8, 4200  # tokens of a short sequence, and of one that is longer than common windows
FAR_SCORES = 600  # of one whose scores are all computed
CLOSE, ROUGH = 5e-3, 5e-2  # of the largest number; angles of far positions are rounded
EXACT = 1e-5  # tells one GELU from the other
NORMS = ("RMSNorm", "SimplifiedLayerNormalization", "RMSNormalization")
ATTENTION = f"{CONTRIB}.GroupQueryAttention"
TABLES = {ATTENTION: 7, f"{CONTRIB}.RotaryEmbedding": 2}  # inputs with cosines, then sines
# The input of ATTENTION with the gain of the heads of Q, then that of K; and their epsilon.
GAINS, EPSILON = 14, ("qk_norm_epsilon", 1e-6)
ACTS = {"silu": "SiLU", "gelu": "GELU"}
Place = tuple[str, int]  # what a product makes, and the first of its rows
Gains = tuple[Floats, Floats]


class TablesError(HostError):
    """The rotary tables are not those that config.json describes."""


@dataclass(frozen=True)
class Matched:
    """Where a layer has the rows of Q, K and V, and of gate and up; the gains of its norms, by
    ``attention`` and ``unit`` in front of these, and of what they add; and of its heads."""

    qkv: tuple[Place, ...]
    units: tuple[Place, ...]
    attention_norm: Floats
    unit_norm: Floats
    attended_norm: Floats | None
    down_norm: Floats | None
    gains: Gains | None


class Matcher:
    """Compares the parts of a graph with their definitions, layer by layer from the first."""

    def __init__(self, graph: Graph, skeleton: Skeleton, expected: Expected) -> None:
        self._graph, self._skeleton, self._expected = graph, skeleton, expected
        model = self._model = expected.model
        self._random = np.random.default_rng(0)
        self._checked: set[tuple[str, ...]] = set()
        self._made: dict[tuple[str, str], Floats] = {}
        # The values whose sum the next norm reads, and what it multiplies them by.
        self._stream = {skeleton.embedding.outputs[0]: expected.kind.embedding_scale(model)}
        self._rows = min(model.context, max(FAR, longest_table(graph)))
        near = min(NEAR, model.context // 2)
        past = min(3, model.context - near)
        self._near = Probe(graph, near, past, model.kv_heads, model.head_dim)
        self._seen = min(FAR if self._near.past else FAR_SCORES, model.context)
        lengths = {self._seen}
        for rope in model.ropes:
            if rope.long_factors and rope.original < model.context:
                if rope.original >= self._seen:
                    reason = f"more than {rope.original} tokens are too many to be checked."
                    raise UnlikeError(reason)
                lengths |= {rope.original, rope.original + 1}
        self._far = [self._long(length) for length in sorted(lengths)]

    def _long(self, length: int) -> Probe:
        """So many tokens, most of them earlier ones if these are kept."""
        count, model = 3 if self._near.past else length, self._model
        return Probe(self._graph, count, length - count, model.kv_heads, model.head_dim)

    def layer(self, index: int) -> Matched:
        """The next layer. Raises UnlikeError where it computes something else, and
        TablesError where its rotary tables are not those that are expected."""
        layer = self._skeleton.layers[index]
        attention_norm = self.norm(layer.qkv[0].inputs[0])
        qkv, gains = self._attention(layer, index)
        attended_norm = self._add(layer.out)
        unit_norm = self.norm(layer.units[0].inputs[0])
        units = self._units(layer)
        down_norm = self._add(layer.down)
        return Matched(qkv, units, attention_norm, unit_norm, attended_norm, down_norm, gains)

    def norm(self, end: str) -> Floats:
        """The gain of the norm between what has been added so far and ``end``, (width,)."""
        return self._norm(self._stream, end)

    def _add(self, product: Node) -> Floats | None:
        """Adds what a product makes, or its norm, whose gain is given back."""
        (name,) = product.outputs
        if not self._expected.kind.post_norms:
            self._stream[name] = 1.0
            return None
        normal = self._normalized(product)
        gain = self._norm({name: 1.0}, normal)
        self._stream[normal] = 1.0
        return gain

    def _normalized(self, product: Node) -> str:
        """The norm of what a product makes; its type or shape may have been changed before."""
        readers, (name,) = self._graph.readers(), product.outputs
        while len(found := readers.get(name, [])) == 1:
            (name, *_) = found[0].outputs
            if found[0].op.endswith(NORMS):
                return name
        raise UnlikeError(f"no norm reads what {product.label} makes.")

    def _norm(self, stream: Mapping[str, float], end: str) -> Floats:
        probe, eps = self._near, self._model.eps
        part = probe.part(list(stream), end)
        node = _norm_of(part.graph, end)
        shapes = [probe.shape(name) for name in stream]
        width = shapes[0][-1]
        gain = _gain(part.graph, node, width)
        if any(prod(s) != probe.count * width or s[-1] != width for s in shapes):
            raise UnlikeError(f"{node.label} does not read a sum of one vector for each token.")
        # So small that eps counts.
        spread = np.sqrt(eps / len(stream))
        values = {n: spread / scale * self._normal(probe.shape(n)) for n, scale in stream.items()}
        total = sum(scale * values[n].reshape(-1, width) for n, scale in stream.items())
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
        act = self._expected.kind.act
        part = probe.part(names, layer.down.inputs[0])
        values = {name: self._normal(probe.shape(name)) for name in names}
        # Numbers of all sizes, then some near 0, where functions differ by little.
        wide = {name: x * self._wide(x.shape) for name, x in values.items()}
        runs = [(probe.compute(part, given), given) for given in (wide, values)]
        tried = [list(_parts(layer.units, given, 2)) for _, given in runs]
        for i, j in permutations(range(2)):
            if tried[0][i][1].shape == tried[0][j][1].shape and all(
                _same(got, activated(found[i][1], act) * found[j][1], tolerance)
                for (got, _), found, tolerance in zip(runs, tried, (1e-4, EXACT), strict=True)
            ):
                return tried[0][i][0], tried[0][j][0]
        raise UnlikeError(f"what {layer.down.label} reads is no unit that is gated by {ACTS[act]}.")

    def _attention(self, layer: Layer, index: int) -> tuple[tuple[Place, ...], Gains | None]:
        """Which rows are of Q, K and V, and the gains of normalized heads."""
        names = [node.outputs[0] for node in layer.qkv]
        part = self._near.part(names, layer.out.inputs[0])
        heads = self._heads(part, layer, index)
        rope = self._expected.rope(index)
        self._check_tables(part, rope)
        sizes = [n * heads.width for n in (heads.queries, heads.keys, heads.keys)]
        values = {name: self._normal(self._near.shape(name)) for name in names}
        cached = {name: self._normal(self._near.shape(name)) for name in caches(part)}
        got = self._near.compute(part, {**values, **cached})
        for roles in _roles(list(_parts(layer.qkv, values, sizes)), sizes, self._near.count):
            places = tuple(place for place, _ in roles)
            for gains in self._gains(part):
                own = replace(heads, gains=gains)
                for old in permutations(cached) if cached else [()]:
                    wanted = self._wanted(self._near, own, roles, cached, old, rope)
                    if _same(got, wanted, CLOSE):
                        self._check_far(layer, own, places, old, rope)
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
        rope: Rope,
    ) -> None:
        """Raises UnlikeError unless long sequences are like the short one."""
        names = [node.outputs[0] for node in layer.qkv]
        sizes = [n * heads.width for n in (heads.queries, *[heads.keys] * 2)]
        for probe in self._far:
            part = probe.part(names, layer.out.inputs[0])
            # Large scores, so that few tokens count and it shows which.
            values = {name: 2 * self._normal(probe.shape(name)) for name in names}
            cached = {name: 2 * self._normal(probe.shape(name)) for name in old}
            found = dict(_parts(layer.qkv, values, sizes))
            roles = tuple((place, found[place]) for place in places)
            got = probe.compute(part, {**values, **cached})
            if not _same(got, self._wanted(probe, heads, roles, cached, old, rope), ROUGH):
                raise UnlikeError(f"what {layer.out.label} reads differs in long texts.")

    def _wanted(
        self,
        probe: Probe,
        heads: Heads,
        roles: tuple[tuple[Place, Floats], ...],
        cached: Mapping[str, Floats],
        old: tuple[str, ...],
        rope: Rope,
    ) -> Floats:
        q, k, v = (x.reshape(-1, x.shape[-1]) for _, x in roles)
        none = np.zeros((heads.keys, 0, heads.width), np.float32)
        past = tuple(cached[name][0] for name in old) or (none, none)
        total = probe.past + probe.count
        return heads.attention(q, k, v, (past[0], past[1]), self._table(rope, total)[:total])

    def _table(self, rope: Rope, context: int) -> Floats:
        """(rows, rotated / 2, 2) of all positions that are checked, in a context of so many."""
        weight = rope.factors_in(context)
        key = rope.name, weight.name if weight else ""
        if key not in self._made:
            self._made[key] = self._expected.table(rope, context, self._rows)
        return self._made[key]

    def _heads(self, part: Part, layer: Layer, index: int) -> Heads:
        """The heads that a layer should have, with the window that matters in this context: nodes
        say it, or the long sequence shows it."""
        model = self._model
        window = model.reach[index].window
        wanted = window if window < model.context else 0
        said = [node for node in part.graph.nodes if node.op == ATTENTION]
        for node in said:
            size: Any = node.attributes.get("local_window_size", -1)
            if max(size, 0) != window and (wanted or 0 < size < model.context):
                raise UnlikeError(f"{node.label} sees {size} tokens, not {window}.")
        if wanted >= self._seen and not said:
            raise UnlikeError(f"the window of {layer.out.label} is too long to be checked.")
        shape = model.q_heads, model.kv_heads, model.head_dim
        return Heads(*shape, model.scale, wanted, model.eps)

    def _check_tables(self, part: Part, rope: Rope) -> None:
        """Raises TablesError if constant tables differ anywhere from the table that is expected."""
        makers, constants = part.graph.makers(), part.graph.constants
        limits = [self._model.context]
        if rope.long_factors and rope.original < self._model.context:
            limits.append(rope.original)
        for node in part.graph.nodes:
            first = TABLES.get(node.op, len(node.inputs))
            names = node.inputs[first : first + 2]
            if not all(names) or (rope.name, *names) in self._checked:
                continue
            self._checked.add((rope.name, *names))
            for column, name in enumerate(names):
                maker = makers.get(name)
                chosen = maker.inputs[1:] if maker and maker.op == CHOICE else [name]
                if not all(one in constants for one in chosen):
                    raise UnlikeError(f"{node.label} computes its tables.")
                tables = [array_of(constants[one]) for one in chosen]
                if len(tables) == 1 < len(limits):
                    # The longer one may lie below the other.
                    tables = [tables[0][limits[1] :], tables[0]]
                if len(tables) != len(limits):
                    raise UnlikeError(f"{node.label} has {len(tables)} tables of {name!r}.")
                for table, limit in zip(tables, limits, strict=True):
                    wanted = self._table(rope, limit)[:limit, :, column]
                    self._check_table(node, name, table[:limit], wanted)

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
        raise TablesError(
            f"{node.label}: the table {name!r} has {reason} than the rotary embedding that "
            "config.json describes (rope_theta, rope_scaling)."
        )

    def _gains(self, part: Part) -> list[Gains | None]:
        """What the gains of the heads of Q and K may be; which is whose, a comparison shows."""
        if not self._expected.kind.head_norm:
            return [None]
        width, found = self._model.head_dim, []
        for node in part.graph.nodes:
            inside = [name for name in node.inputs[GAINS:] if name and node.op == ATTENTION]
            if not inside and not node.op.endswith(NORMS):
                continue
            eps: Any = node.attributes.get(*(EPSILON if inside else ("epsilon", 1e-5)))
            if abs(eps - self._model.eps) > 1e-3 * self._model.eps:
                raise UnlikeError(f"{node.label} has the epsilon {eps:g}.")
            vectors = [_vector(part.graph, node, [name], width) for name in inside]
            found += vectors or [_gain(part.graph, node, width)]
        if len(found) != 2:
            raise UnlikeError(f"the heads of a layer have {len(found)} norms, not two.")
        return [(found[0], found[1]), (found[1], found[0])]

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


def _roles(found: list[Any], sizes: Sequence[int], count: int) -> Any:
    """The parts in all orders in which they may be Q, K and V of so many tokens; those of one
    product are in theirs."""
    orders: Any = permutations(found)
    if len({name for (name, _), _ in found}) == 1:
        orders = [tuple(found)]
    for roles in orders:
        shapes = [x.shape for _, x in roles]
        fit = all(prod(shape) == count * size for shape, size in zip(shapes, sizes, strict=True))
        if fit and [shape[-1] for shape in shapes] == list(sizes):
            yield roles


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
    return _vector(graph, norm, [name for name in norm.inputs if name in graph.constants], width)


def _vector(graph: Graph, node: Node, names: Sequence[str], width: int) -> Floats:
    """The constant vector that is the only one of these inputs."""
    found = [graph.constants[name] for name in names if name in graph.constants]
    if len(found) != 1 or found[0].shape != (width,):
        raise UnlikeError(f"{node.label} has not one vector as its gain.")
    return array_of(found[0])


def longest_table(graph: Graph) -> int:
    """The positions that the longest rotary table has, 0 without any."""
    firsts = {**TABLES, CHOICE: 1}
    found = [
        graph.constants[name].shape[0]
        for node in graph.nodes
        for name in node.inputs[firsts.get(node.op, len(node.inputs)) :][:2]
        if name in graph.constants and graph.constants[name].shape
    ]
    return max(found, default=0)


def array_of(constant: Constant) -> Floats:
    """The elements of a constant that is not quantized, f32."""
    if constant.array is not None:
        return np.asarray(constant.array, np.float32)
    assert constant.value
    return np.array(constant.value.data, np.float32).reshape(constant.shape)
