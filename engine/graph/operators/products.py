"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from engine.graph.axes import Shape, concrete
from engine.graph.known import Known
from engine.graph.model import OWN
from engine.graph.operator import Fact, Operator, Use
from engine.ops.attend import attend
from engine.ops.elementwise import elementwise, reshaped
from engine.ops.gate import ACTS
from engine.ops.product import product
from engine.ops.rows import reduce
from engine.ops.view import View
from engine.plan import Weight
from engine.weights.quants import planes

if TYPE_CHECKING:
    from engine.graph.lowering import Lowering


def _matmul_shapes(use: Use) -> tuple[Shape, Shape, Shape]:
    """The shapes of both inputs as matrices, without the axes that vectors are given, and the
    batch."""
    x, w = use.fact(0).shape, use.fact(1).shape
    if not x or not w:
        raise use.failure("its inputs need an axis at least.")
    left, right = x if len(x) > 1 else (1, *x), w if len(w) > 1 else (*w, 1)
    use.check_same(left[-1], right[-2], "the sizes that a product sums over")
    return left, right, use.broadcast(left[:-2], right[:-2])


def _infer_matmul(use: Use) -> list[Fact]:
    left, right, batch = _matmul_shapes(use)
    rows = left[-2:-1] if use.fact(0).rank > 1 else ()
    columns = right[-1:] if use.fact(1).rank > 1 else ()
    return [Fact(use.fact(0).dtype, (*batch, *rows, *columns))]


def _lower_matmul(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    left, right, batch = _matmul_shapes(use)
    y = multiplied(lowering, inputs[0], inputs[1], left, right, batch)
    return [reshaped(lowering.b, y, concrete(outputs[0].shape))]


def multiplied(
    lowering: Lowering, x: View, w: View, left: Any, right: Any, batch: Any, scale: float = 1.0
) -> View:
    """The product of two inputs seen as matrices; one without anything to sum is zero."""
    if not left[-1]:
        return lowering.filled(Fact("f32", (*batch, left[-2], right[-1])), 0.0)
    x = _as_matrices(lowering, x, left)
    w = _as_matrices(lowering, w, right)
    if len(right) == 2 and len(left) > 2:
        # One matrix for all: rows of a batch are rows as any.
        rows = reshaped(lowering.b, x, (prod(left[:-1]), left[-1]))
        y = product(lowering.b, rows, w, scale)
        return reshaped(lowering.b, y, (*batch, left[-2], right[-1]))
    x = x.with_layout(x.layout.expanded((*batch, *left[-2:])))
    w = w.with_layout(w.layout.expanded((*batch, *right[-2:])))
    return product(lowering.b, x, w, scale)


def _as_matrices(lowering: Lowering, view: View, shape: Any) -> View:
    return view if view.shape == shape else reshaped(lowering.b, view, shape)


def _gemm_shapes(use: Use) -> tuple[Shape, Shape]:
    x, w = use.fact(0).shape, use.fact(1).shape
    if len(x) != 2 or len(w) != 2:
        raise use.failure("its inputs have to be matrices.")
    x = tuple(reversed(x)) if use.attribute("transA", 0) else x
    w = tuple(reversed(w)) if use.attribute("transB", 0) else w
    use.check_same(x[1], w[0], "the sizes that a product sums over")
    return x, w


def _infer_gemm(use: Use) -> list[Fact]:
    x, w = _gemm_shapes(use)
    shape = (x[0], w[1])
    if use.has(2):
        use.broadcast(shape, use.fact(2).shape)
    return [Fact(use.fact(0).dtype, shape)]


def _lower_gemm(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    b, (x, w, *c) = lowering.b, inputs
    x = x.with_layout(x.layout.permuted((1, 0))) if use.attribute("transA", 0) else x
    w = w.with_layout(w.layout.permuted((1, 0))) if use.attribute("transB", 0) else w
    y = multiplied(lowering, x, w, x.shape, w.shape, (), use.attribute("alpha", 1.0))
    beta = use.attribute("beta", 1.0)
    if not c or beta == 0:
        return [y]
    added = c[0]
    if beta != 1:
        factor = lowering.known(Known("f32", (), (beta,)))
        added = elementwise(b, "mul", [added, factor], added.shape)
    return [elementwise(b, "add", [y, added], y.shape)]


def _parse_einsum(use: Use) -> tuple[list[str], str]:
    equation = use.attribute("equation", "").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    labels = "".join(terms)
    if not arrow:
        out = "".join(sorted(label for label in set(labels) if labels.count(label) == 1))
    single = all(len(set(term)) == len(term) for term in [*terms, out])
    if not labels.isalpha() or not single or not set(out) <= set(labels) or len(terms) > 2:
        raise use.unsupported(f"the equation {equation[:80]!r} is not supported.")
    if len(terms) != len(use.facts):
        raise use.failure("its equation has not as many terms as there are inputs.")
    return terms, out


def _infer_einsum(use: Use) -> list[Fact]:
    terms, out = _parse_einsum(use)
    sizes: dict[str, Any] = {}
    for i, term in enumerate(terms):
        if len(term) != use.fact(i).rank:
            raise use.failure(f"input {i} has not the axes of {term!r}.")
        for label, size in zip(term, use.fact(i).shape, strict=True):
            use.check_same(sizes.setdefault(label, size), size, f"the sizes of {label!r}")
    return [Fact(use.fact(0).dtype, tuple(sizes[label] for label in out))]


def _lower_einsum(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    terms, out = _parse_einsum(use)
    b = lowering.b
    views = list(inputs)
    for i, term in enumerate(terms):
        others = set(out) | {label for j, t in enumerate(terms) if j != i for label in t}
        alone = [k for k, label in enumerate(term) if label not in others]
        if alone and views[i].elements:
            views[i] = reduce(b, "sum", views[i], alone)
            terms[i] = "".join(label for label in term if label in others)
    sizes = {
        la: n for t, v in zip(terms, views, strict=True) for la, n in zip(t, v.shape, strict=True)
    }
    if len(terms) == 1:
        y, made = views[0], terms[0]
    else:
        x, w = terms
        batch = [label for label in x if label in w and label in out]
        summed = [label for label in x if label in w and label not in out]
        rows = [label for label in x if label not in w]
        columns = [label for label in w if label not in x]

        def matrices(view: View, term: str, *parts: list[str]) -> View:
            order = [term.index(label) for part in parts for label in part]
            view = view.with_layout(view.layout.permuted(order))
            return reshaped(b, view, [prod(sizes[la] for la in part) for part in parts])

        left = matrices(views[0], x, batch, rows, summed)
        right = matrices(views[1], w, batch, summed, columns)
        y = multiplied(lowering, left, right, left.shape, right.shape, left.shape[:1])
        made = "".join([*batch, *rows, *columns])
        y = reshaped(b, y, [sizes[label] for label in made])
    return [y.with_layout(y.layout.permuted([made.index(label) for label in out]))]


def _infer_linear(use: Use) -> list[Fact]:
    x, w = use.fact(0), use.fact(1)
    use.check_same(x.shape[-1], w.shape[1], "the sizes that a product sums over")
    shape = (*x.shape[:-1], w.shape[0])
    if use.has(3):
        use.broadcast(shape, use.fact(3).shape)
    return [Fact(x.dtype, shape)]


def _lower_linear(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    """``x @ w.T + bias + residual``, or with an ``act`` in its place, with constant w (N, K) and
    bias (N,)."""
    x, matrix, *rest = inputs
    w = _matrix(use, matrix)
    bias = rest.pop(0).tensor if use.has(2) else None
    assert bias is None or isinstance(bias, Weight)
    added = rest[0] if rest else None
    act = use.attribute("act", "") or None
    if act and (added or act not in ACTS):
        raise use.unsupported(f"the activation {act!r} is not supported here.")
    return [lowering.linear(x, w, bias, added, act)]


def _matrix(use: Use, view: View) -> Weight:
    """A constant matrix (N, K), as the kernels of language models take it."""
    weight, (n, k) = view.tensor, view.shape
    if not isinstance(weight, Weight):
        raise use.failure("its matrix is no constant.")
    if weight.quant != "F32":
        return weight
    return replace(weight, shape=(n, k), rows=(range(n),), planes=planes(weight.format, (n, k)))


def _infer_gated(use: Use) -> list[Fact]:
    x, w = use.fact(0), use.fact(1)
    use.check_same(x.shape[-1], w.shape[1], "the sizes that a product sums over")
    if use.attribute("act", "silu") not in ("silu", "gelu"):
        raise use.unsupported("its gate is not supported.")
    return [Fact(x.dtype, (*x.shape[:-1], w.shape[0] // 2))]


def _lower_gated(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    x, matrix = inputs
    return [lowering.gated_linear(x, _matrix(use, matrix), use.attribute("act", "silu"))]


def _infer_embed(use: Use) -> list[Fact]:
    w, indices = use.fact(0), use.fact(1)
    if indices.is_float or w.rank != 2:
        raise use.failure("its indices are no whole numbers, or it has no matrix.")
    return [Fact(w.dtype, (*indices.shape, w.shape[1]))]


def _lower_embed(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    return [lowering.embed(inputs[1], _matrix(use, inputs[0]))]


def _infer_attention(use: Use) -> list[Fact]:
    q, k, v = (use.fact(i) for i in range(3))
    keys = k.shape[-2:][:: -1 if use.attribute("transposed", 0) else 1]
    use.check_same(q.shape[-1], keys[1], "the lengths of a query and of a key")
    use.check_same(keys[0], v.shape[-2], "the numbers of keys and values")
    for other in (k, v):
        if other.rank != q.rank:
            raise use.failure("queries, keys and values have different ranks.")
        for a, b in zip(q.shape[:-2], other.shape[:-2], strict=True):
            use.check_same(a, b, "the axes in front of queries, keys and values")
    if use.has(3):
        use.broadcast(use.fact(3).shape, (*q.shape[:-1], keys[0]))
    return [Fact(q.dtype, (*q.shape[:-1], v.shape[-1]))]


def _lower_attention(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    q, k, v, *mask = inputs
    if use.attribute("transposed", 0):
        rank = len(k.shape)
        k = k.with_layout(k.layout.permuted((*range(rank - 2), rank - 1, rank - 2)))
    scale = use.attribute("scale", 1.0)
    guarded = bool(use.attribute("guarded", 0))
    return [attend(lowering.b, q, k, v, mask[0] if mask else None, scale, guarded)]


_OWN = range(1, 2)  # versions
OPERATORS = (
    Operator("MatMul", _infer_matmul, _lower_matmul, inputs=range(2, 3)),
    Operator(
        "Gemm",
        _infer_gemm,
        _lower_gemm,
        frozenset({"alpha", "beta", "transA", "transB"}),
        range(2, 4),
    ),
    Operator("Einsum", _infer_einsum, _lower_einsum, frozenset({"equation"}), range(1, 3)),
    Operator(
        f"{OWN}.Linear",
        _infer_linear,
        _lower_linear,
        frozenset({"act"}),
        range(2, 5),
        _OWN,
        quantized=1,
    ),
    Operator(
        f"{OWN}.GatedLinear",
        _infer_gated,
        _lower_gated,
        frozenset({"act"}),
        range(2, 3),
        _OWN,
        quantized=1,
    ),
    Operator(
        f"{OWN}.Embed", _infer_embed, _lower_embed, inputs=range(2, 3), opsets=_OWN, quantized=0
    ),
    Operator(
        f"{OWN}.Attention",
        _infer_attention,
        _lower_attention,
        frozenset({"scale", "transposed", "guarded"}),
        range(3, 5),
        _OWN,
    ),
)
