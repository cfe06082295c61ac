"""Linear layers on quantized weights, with what surrounds them fused where a kernel can.

kernel          tokens   needs            activations
linear_team     1        barriers; norm, or joining of spans, fused   f32
linear_tile     many     barriers                              f32
linear_tile_plain many   barriers, weights in single precision f32
linear_rows     any      nothing                               f32
linear_tile_int many     barriers, weights with a packed form  integers per block of 32
linear_rows_int any      nothing, weights with a packed form   integers per block of 32
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import ceil
from typing import Any

from engine.ops.embed import weight_slots
from engine.ops.gate import ACTS, Act, activated, gate, gated
from engine.ops.norm import Norm, normalize, rmsnorm
from engine.ops.quantize import TERMS, dequantized, quantize
from engine.ops.spans import Spans, tensor_of
from engine.ops.state import NUM_TOKENS, STEP, STEP_SLOT
from engine.plan import Call, Grid, PlanBuilder, Tensor, Variant, Weight
from engine.shaders import Shader, Slot
from engine.weights.quants import FORMATS, packed_lib, pairs_lib, split, weight_lib

FEW_ROWS = 4096
MANY_ROWS = 16384
FEW_TILES = 256  # keep a large GPU half busy
FEW_SLICES = 512  # of small tiles: more of them are in each other's way
MANY_LANES = 256  # of a workgroup of linear_team that joins spans
JOINED_BYTES = 100 << 20  # that all workgroups of a product may read to join spans, each for itself
MOST_SLOTS = 8  # storage buffers a stage that WebGPU guarantees
_Way = tuple[int, int, int]  # lanes of a workgroup, and of a team; rows of a team
Stack = tuple[Weight, ...]  # matrices (N, K) that make one by rows, each quantized in its own way


@dataclass(frozen=True)
class _Layer:
    """One linear layer to be turned into a kernel call; its rows begin at ``first`` in those of y
    and of the bias."""

    x: Tensor | Spans
    w: Weight
    y: Tensor
    parts: int
    norm: Norm | None
    bias: Weight | None
    residual: Tensor | None
    first: int = 0
    act: Act | None = None

    @property
    def rows(self) -> int:
        return self.w.shape[0] // self.parts

    @property
    def finish(self) -> tuple[str, ...]:
        """The pieces of WGSL that end the kernel."""
        if self.act:
            return (*ACTS[self.act], "finish_gate" if self.parts == 2 else "finish_act")
        return ("finish_add",) if self.residual else ("finish_store",)


def linear(
    b: PlanBuilder,
    x: Tensor | Spans,
    w: Weight | Stack,
    *,
    norm: Norm | None = None,
    bias: Weight | None = None,
    residual: Tensor | None = None,
    act: Act | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """``norm(x) @ w.T + bias + residual``, or ``act(norm(x) @ w.T + bias)``: x (M, K) f32, w (N, K)
    -> (M, N) f32; ``into`` is a tensor for the result that outlives the plan."""
    assert not (act and residual)
    matrices = w if isinstance(w, tuple) else (w,)
    y = into or b.activation("linear", b.tokens, sum(matrix.shape[0] for matrix in matrices))
    pieces = [piece for m in matrices for piece in split(m, b.traits.max_tensor_bytes)]
    _emit(b, _below_each_other(_Layer(x, p, y, 1, norm, bias, residual, act=act) for p in pieces))
    return y


def gated_linear(
    b: PlanBuilder, x: Tensor, w: Weight | Stack, *, norm: Norm | None = None, act: Act = "silu"
) -> Tensor:
    """``act(g) * u`` with ``g, u = split(norm(x) @ w.T)``: x (M, K), w (2F, K) -> (M, F) f32. One
    matrix is one call; a stack of several takes one for each, and one for the gate."""
    parts = w if isinstance(w, tuple) else (w,)
    if len(parts) > 1:
        return gate(b, linear(b, x, parts, norm=norm), act)
    y = b.activation("gated", x.shape[0], parts[0].shape[0] // 2)
    pieces = split(parts[0], b.traits.max_tensor_bytes, 2)
    _emit(b, _below_each_other(_Layer(x, p, y, 2, norm, None, None, act=act) for p in pieces))
    return y


def _below_each_other(layers: Iterable[_Layer]) -> list[_Layer]:
    """The layers, each of which begins where the rows of the one before end."""
    placed: list[_Layer] = []
    for layer in layers:
        first = placed[-1].first + placed[-1].rows if placed else 0
        placed.append(replace(layer, first=first))
    return placed


def _emit(b: PlanBuilder, layers: Sequence[_Layer]) -> None:
    """The calls of layers that share input and norm."""
    traits, norm = b.traits, layers[0].norm

    @cache
    def tensor() -> Tensor:
        return tensor_of(b, layers[0].x)

    @cache
    def quantized(pairs: bool) -> tuple[Tensor, Tensor]:
        return quantize(b, tensor(), norm, pairs)

    @cache
    def normalized() -> Tensor:
        return rmsnorm(b, tensor(), norm.gain, norm.eps) if norm else tensor()

    for layer in layers:
        if traits.kind == "cpu" or (b.tokens == 1 and traits.barriers):
            joining = _joining_ways(b, layer)
            alone = layer if joining else replace(layer, x=tensor())
            b.call(_team(b, alone, joining or _ways(b, layer)))
            continue
        plain = replace(layer, x=tensor(), norm=None)
        if traits.activations == "f32" or not packed_lib(layer.w.format):
            plain = replace(plain, x=normalized())
            if not traits.barriers:
                b.call(_rows(b, plain))
            elif layer.w.format == "f32" and layer.parts == 1:
                b.call(_tile_plain(b, plain))
            else:
                b.call(_tile(b, plain))
        elif traits.barriers:
            b.call(_tile_int(b, plain, *quantized(False)))
        else:
            b.call(_rows_int(b, plain, *quantized(bool(pairs_lib(layer.w.format)))))


def _call(
    b: PlanBuilder,
    layer: _Layer,
    name: str,
    lib: tuple[str, ...],
    variants: Mapping[str, Variant],
    inputs: Mapping[str, tuple[Tensor, str]] | None = None,
    consts: Mapping[str, int] | None = None,
    enable: tuple[str, ...] = (),
) -> Call:
    """The kernel call of a layer, as the first of ``variants``; ``inputs`` replaces the f32 input
    by other tensors."""
    first = next(iter(variants.values()))
    args: dict[str, Tensor] = {"step": STEP}
    slots = [] if name == "linear_team" else [STEP_SLOT]
    overrides: dict[str, int | float] = {"K": layer.w.shape[1], "N": layer.rows}
    if isinstance(layer.x, Spans):
        args |= layer.x.args
        slots += layer.x.read_slots
        lib = (*layer.x.join_lib, *lib)
        consts = {**layer.x.join_consts, **(consts or {})}
        overrides["WINDOW"] = layer.x.window
    else:
        for arg, (tensor, store) in (inputs or {"x": (layer.x, "array<vec4<f32>>")}).items():
            args[arg] = tensor
            slots.append(Slot(arg, store))
    args["w"] = layer.w
    slots += weight_slots("w", layer.w)
    overrides |= {"STRIDE": layer.y.shape[1], "FIRST": layer.first}
    if layer.norm:
        args["norm"] = layer.norm.gain
        slots += weight_slots("norm", layer.norm.gain)
        overrides["EPS"] = layer.norm.eps
    if layer.bias:
        args["bias"] = layer.bias
        slots += weight_slots("bias", layer.bias)
    if layer.residual:
        args["residual"] = layer.residual
        slots.append(Slot("residual", "array<f32>"))
    args["y"] = layer.y
    slots.append(Slot("y", "array<f32>", "read_write"))
    assert len(slots) <= MOST_SLOTS, "bias and residual together, on a weight of three planes"
    lib = (*lib, "bias_add" if layer.bias else "bias_none", *layer.finish)
    shader = Shader(
        name,
        tuple(slots),
        lib=lib,
        consts={**first.consts, **(consts or {}), "PARTS": layer.parts},
        overrides=overrides,
        enable=enable,
    )
    return Call("linear", args, ("y",), _reference(layer), shader, first.grid, variants)


def _ways(b: PlanBuilder, layer: _Layer) -> list[_Way]:
    """How linear_team may divide its work, the rule's choice first. Many rows (the output matrix)
    fill a GPU anyway, and then more rows a team share the loads of the activations."""
    subgroup = b.traits.subgroup
    widest = min(subgroup, 32) or 32
    half = not subgroup or (layer.parts == 2 and layer.rows >= FEW_ROWS)
    team = min(widest, 16) if half else widest
    rows = 4 if layer.rows >= MANY_ROWS and layer.parts == 1 else 2
    return [(64, team, rows), *product((64,), (widest, widest // 2), (1, 2, 4))]


def _joining_ways(b: PlanBuilder, layer: _Layer) -> list[_Way]:
    """The same for a product that joins the spans of its input, which saves a dispatch: those whose
    workgroups have the memory for the input, and do not read too much altogether. The more lanes
    share what is joined, the less is read."""
    if not isinstance(layer.x, Spans) or layer.norm:
        return []
    k, (_, team, _) = layer.w.shape[1], _ways(b, layer)[0]
    padded = k * 9 // 8  # see wgsl/lib/input_spans.wgsl
    if 4 * (padded + MANY_LANES) > b.traits.workgroup_bytes:
        return []
    nbytes = layer.x.most * 4 * k  # that a workgroup reads
    ways = [(MANY_LANES, team, 1), (MANY_LANES, team, 2), (MANY_LANES // 2, team, 1)]
    return [way for way in ways if _workgroups(layer, way) * nbytes <= JOINED_BYTES]


def _workgroups(layer: _Layer, way: _Way) -> int:
    lanes, team, rows = way
    return ceil(layer.rows / (lanes // team * rows))


def _team(b: PlanBuilder, layer: _Layer, ways: Sequence[_Way]) -> Call:
    """One token, a team of lanes for a few rows."""
    has_subgroups = b.traits.subgroup > 0

    def variant(lanes: int, team: int, rows: int) -> Variant:
        grid = Grid.rows(_workgroups(layer, (lanes, team, rows)))
        return Variant({"WORKGROUP": lanes, "TEAM": team, "ROWS": rows}, grid)

    def name(lanes: int, team: int, rows: int) -> str:
        return f"{team} lanes, {rows} rows" + (f", {lanes}" if lanes != 64 else "")

    plain = "input_spans" if isinstance(layer.x, Spans) else "input_plain"
    return _call(
        b,
        layer,
        "linear_team",
        (
            *weight_lib(layer.w.format),
            "input_norm" if layer.norm else plain,
            f"team_sum_{'subgroup' if has_subgroups else 'workgroup'}",
        ),
        {name(*way): variant(*way) for way in ways},
        enable=("subgroups",) if has_subgroups else (),
    )


@dataclass(frozen=True)
class _Tile:
    """A workgroup's tile of the result of many tokens: ``across`` of its ``lanes`` lie side by
    side on the rows of the weight."""

    tokens: int
    rows: int
    lanes: int
    across: int

    def variant(self, layer: _Layer) -> Variant:
        """Rows are those of all parts together."""
        rows = self.rows // layer.parts
        consts = {"TILE_M": self.tokens, "TILE_N": rows, "WORKGROUP": self.lanes}
        grid = Grid(ceil(layer.rows / rows), tokens=self.tokens)
        return Variant({**consts, "THREADS_N": self.across}, grid)


TILES = (_Tile(64, 64, 256, 16), _Tile(32, 64, 128, 16))
TILES_INT = (
    _Tile(64, 64, 128, 16),
    _Tile(32, 64, 128, 16),
    _Tile(32, 128, 128, 32),
    _Tile(32, 32, 64, 8),
    _Tile(64, 64, 256, 16),
)


def _tiled(layer: _Layer, tiles: tuple[_Tile, ...]) -> dict[str, Variant]:
    """Few rows make few tiles, too few to keep a large GPU busy: then the second is the rule,
    which takes half the tokens."""
    first, second, *others = tiles
    if layer.w.shape[0] < FEW_ROWS:
        first, second = second, first
    ordered = (first, second, *others)
    return {f"{t.tokens}x{t.rows}, {t.lanes} lanes": t.variant(layer) for t in ordered}


def _tile(b: PlanBuilder, layer: _Layer) -> Call:
    """Many tokens, tiles in workgroup memory."""
    lib = ("step", *weight_lib(layer.w.format))
    return _call(b, layer, "linear_tile", lib, _tiled(layer, TILES))


def _tile_plain(b: PlanBuilder, layer: _Layer) -> Call:
    """Many tokens, tiles in workgroup memory, weights as they are. Where large tiles are too few to
    keep a GPU busy, small ones are the rule, and where these are few, more lanes for each."""

    def variant(size: int, groups: int, slices: int) -> Variant:
        consts = {"TILE_M": size, "TILE_N": size, "GROUPS": groups, "SLICES": slices}
        return Variant(consts, Grid(ceil(layer.rows / size), tokens=size))

    def fits(slices: int) -> bool:
        nbytes = 2 * 32 * 4 * 32 * slices  # 32 of K of 32 tokens and of 32 rows
        return nbytes <= b.traits.workgroup_bytes and 32 * slices <= layer.w.shape[1]

    def tiles(size: int) -> int:
        return ceil(layer.rows / size) * ceil(b.tokens / size)

    large = {"64x64": variant(64, 2, 1)}
    slices = sorted(filter(fits, (4, 2, 1)), key=lambda n: n > 1 and n * tiles(32) > FEW_SLICES)
    small = {f"32x32 by {n}": variant(32, 1, n) for n in slices}
    ordered = large | small if tiles(64) >= FEW_TILES else small | large
    return _call(b, layer, "linear_tile_plain", ("step",), ordered)


def _thread_rows(b: PlanBuilder, layer: _Layer) -> dict[str, Variant]:
    """Rows and tokens that a thread of the barrier-free kernels handles. All rows share the loads
    of the activations, which are what takes time without a cache."""
    many, workgroup = b.tokens > 1, 4
    tokens = 4 if many else 1

    def variant(rows: int) -> Variant:
        grid = Grid(ceil(layer.rows / (rows * workgroup)), tokens=tokens if many else 0)
        return Variant({"WORKGROUP": workgroup, "ROWS": rows, "TOKENS": tokens}, grid)

    each = [(8 if many else 16) // layer.parts, 4 // layer.parts]
    return {f"{rows} rows": variant(rows) for rows in each}


def _rows(b: PlanBuilder, layer: _Layer) -> Call:
    """Any number of tokens, without barriers."""
    lib = ("step", *weight_lib(layer.w.format))
    return _call(b, layer, "linear_rows", lib, _thread_rows(b, layer))


def _tile_int(b: PlanBuilder, layer: _Layer, quants: Tensor, scales: Tensor) -> Call:
    """Many tokens, tiles in workgroup memory, on integer activations."""
    stage, terms = 2, TERMS[b.traits.activations]
    scale = 16 if FORMATS[layer.w.format].halved else 8  # bytes, of weights and of activations

    def fits(tile: _Tile) -> bool:
        token, row = 32 * terms + scale, 32 + scale
        return stage * (tile.tokens * token + tile.rows * row) <= b.traits.workgroup_bytes

    lib, variants = packed_lib(layer.w.format), _tiled(layer, tuple(filter(fits, TILES_INT)))
    consts = {"STAGE": stage}
    return _on_integers(b, layer, "linear_tile_int", lib, variants, quants, scales, consts)


def _rows_int(b: PlanBuilder, layer: _Layer, quants: Tensor, scales: Tensor) -> Call:
    """Any number of tokens, without barriers, on integer activations."""
    format, many = layer.w.format, b.tokens > 1
    lib = pairs_lib(format) or (*packed_lib(format), "dot_bytes")
    rows, tokens = 8 // layer.parts, 4 if many else 1

    def variant(workgroup: int) -> Variant:
        grid = Grid(ceil(layer.rows / (rows * workgroup)), tokens=tokens if many else 0)
        return Variant({"WORKGROUP": workgroup, "TOKENS": tokens}, grid)

    variants = {f"{n} threads": variant(n) for n in (4, 16)}
    return _on_integers(b, layer, "linear_rows_int", lib, variants, quants, scales, {})


def _on_integers(
    b: PlanBuilder,
    layer: _Layer,
    name: str,
    lib: tuple[str, ...],
    variants: Mapping[str, Variant],
    quants: Tensor,
    scales: Tensor,
    consts: Mapping[str, int],
) -> Call:
    inputs = {
        "x_quants": (quants, "array<vec4<u32>>"),
        "x_scales": (scales, "array<vec2<f32>>"),
    }
    lib = ("step", *lib)
    consts = {**consts, "TERMS": TERMS[b.traits.activations]}
    return _call(b, layer, name, lib, variants, inputs, consts)


def _reference(layer: _Layer) -> Any:
    """The layer in NumPy, from f32 input or from quantized input."""
    eps = layer.norm.eps if layer.norm else 0.0
    own = slice(layer.first, layer.first + layer.rows)

    def reference(a: Mapping[str, Any]) -> None:
        n = min(int(a["step"][NUM_TOKENS]), layer.y.shape[0])
        if isinstance(layer.x, Spans):
            x = layer.x.joined(a, n)
        else:
            x = dequantized(a, n) if "x_quants" in a else a["x"][:n]
        if "norm" in a:
            x = normalize(x, a["norm"], eps)
        y = matmul(x, a["w"])
        if "bias" in a:
            y = y + a["bias"][own]
        if "residual" in a:
            y = y + a["residual"][:n, own]
        if layer.act:
            y = (gated if layer.parts == 2 else activated)(y, layer.act)
        a["y"][:n, own] = y

    return reference


def matmul(x: Any, w: Any) -> Any:
    """``x @ w.T`` in NumPy: x (M, K), w (N, K) -> (M, N)."""
    import numpy as np

    # Without BLAS, as in Pyodide, einsum is 2 to 4 times faster than @.
    return np.einsum("mk,nk->mn", x, w)
