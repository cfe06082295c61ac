"""Operators of the domain com.microsoft that exported language models have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.graph.known import Known
from engine.graph.model import CONTRIB
from engine.graph.operator import Fact, Operator, Use
from engine.ops.attend import attend
from engine.ops.elementwise import apply, contiguous, elementwise, reshaped
from engine.ops.gather import gather
from engine.ops.rows import normalization
from engine.ops.view import View, new_view

if TYPE_CHECKING:
    from engine.graph.lowering import Lowering


def _infer_matmul(use: Use) -> list[Fact]:
    x, k, n = use.fact(0), use.attribute("K", 0), use.attribute("N", 0)
    use.check_same(x.shape[-1] if x.rank else 0, k, "the sizes that a product sums over")
    return [Fact(x.dtype, (*x.shape[:-1], n))]


def _infer_gather(use: Use) -> list[Fact]:
    data, indices, scales = use.fact(0), use.fact(1), use.fact(2)
    if data.rank != 2 or scales.rank != 2:
        raise use.unsupported("only matrices are supported.")
    width = scales.shape[1] * use.attribute("block_size", 128)
    return [Fact(scales.dtype, (*indices.shape, width))]


def _lower_quantized(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> Any:
    """Passes make other operators of those whose matrices can be taken over."""
    raise use.unsupported("a matrix with these bits, blocks or zero points is not supported.")


def _infer_rotary(use: Use) -> list[Fact]:
    x = use.fact(0)
    if x.rank not in (3, 4):
        raise use.failure("its input should have three or four axes.")
    if use.attribute("interleaved", 0):
        raise use.unsupported("interleaved pairs are not supported.")
    rotated, width = _table(use)
    if x.rank == 3:
        heads = use.attribute("num_heads", 0)
        if not isinstance(x.shape[2], int) or x.shape[2] % (heads or width):
            raise use.failure("nobody says how many heads there are.")
        width = x.shape[2] // heads if heads else width
    else:
        width = x.shape[3] if isinstance(x.shape[3], int) else width
    if width < rotated or use.fact(1).rank > 2:
        raise use.failure(f"heads of {width} elements are not rotated by these tables.")
    return [Fact(x.dtype, x.shape)]


def _table(use: Use) -> tuple[int, int]:
    """How many elements of a head are rotated, and how many it has, as far as tables say."""
    if use.fact(2).rank != 2 or use.fact(3).shape != use.fact(2).shape:
        raise use.failure("its tables are not two matrices of one shape.")
    half = use.fact(2).shape[-1]
    width = use.attribute("rotary_embedding_dim", 0) or 2 * half
    if not isinstance(width, int) or width != 2 * half:
        raise use.failure("its tables have not half as many columns as are rotated.")
    return width, width


def _lower_rotary(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    x, positions, cos, sin = inputs
    rotated, width = _table(use)
    b = lowering.b
    if len(x.shape) == 3:
        heads = use.attribute("num_heads", 0) or x.shape[2] // width
        split = reshaped(b, x, (*x.shape[:2], heads, x.shape[2] // heads))
    else:
        split = x.with_layout(x.layout.permuted((0, 2, 1, 3)))
    tables = _tables(lowering, positions, (cos, sin), split.shape[:2])
    y = rotate(lowering, split, tables, rotated)
    if len(x.shape) == 3:
        return [reshaped(b, y, x.shape)]
    return [y.with_layout(y.layout.permuted((0, 2, 1, 3)))]


def _tables(
    lowering: Lowering, positions: View, tables: Sequence[View], shape: Sequence[int]
) -> list[View]:
    """Rows of the tables for every token: (batch, sequence, 1, half)."""
    b = lowering.b
    if positions.elements == 1 and shape[0] * shape[1] != 1:
        # One position is that of the first token.
        steps = lowering.known(Known("i64", (1, shape[1]), tuple(range(shape[1]))))
        positions = elementwise(b, "add", [steps, positions], (1, shape[1]), "i32")
    rows = [gather(b, table, positions, 0) for table in tables]
    return [row.with_layout(row.layout.unsqueezed([2])) for row in rows]


def rotate(lowering: Lowering, x: View, tables: Sequence[View], rotated: int) -> View:
    """Pairs (i, i + rotated / 2) of each head turned: x (batch, sequence, heads, width) and the
    cosines and sines (batch, sequence, 1, rotated / 2)."""
    b, half, axis = lowering.b, rotated // 2, len(x.shape) - 1
    y = new_view(b, "rotated", x.shape)

    def part(view: View, start: int, size: int) -> View:
        return view.with_layout(view.layout.sliced(axis, start, 1, size))

    first, second = part(x, 0, half), part(x, half, half)
    cos, sin = tables
    shape = first.shape
    for target, one, other, name in ((0, first, second, "sub"), (half, second, first, "add")):
        straight = elementwise(b, "mul", [one, cos], shape)
        across = elementwise(b, "mul", [other, sin], shape)
        apply(b, name, [straight, across], part(y, target, half))
    rest = x.shape[-1] - rotated
    if rest:
        apply(b, "copy", [part(x, rotated, rest)], part(y, rotated, rest))
    return y


def _infer_heads(use: Use) -> list[Fact]:
    q, k, v = (use.fact(i) for i in range(3))
    heads = use.attribute("num_heads", 0)
    if heads < 1 or not q.rank == k.rank == v.rank == 3:
        raise use.unsupported("only queries, keys and values with three axes are supported.")
    for i in (4, 6, 7):
        if use.has(i):
            raise use.unsupported(f"input {i} is not supported.")
    for size in (q.shape[2], v.shape[2]):
        if not isinstance(size, int) or size % heads:
            raise use.failure(f"{size} elements are no {heads} heads.")
    use.check_same(q.shape[2], k.shape[2], "the sizes of queries and keys")
    return [Fact(q.dtype, (*q.shape[:2], v.shape[2]))]


def _lower_heads(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    """Inputs: q, k, v, bias of all three, key padding (not supported), bias of the scores."""
    b, heads = lowering.b, use.attribute("num_heads", 0)
    q, k, v, bias, _, mask = use.by_place(inputs, 6)
    assert q and k and v
    parts, at = [], 0
    for view in (q, k, v):
        if bias:
            own = bias.with_layout(bias.layout.sliced(0, at, 1, view.shape[2]))
            at += view.shape[2]
            view = elementwise(b, "add", [view, own], view.shape)
        split = reshaped(b, view, (*view.shape[:2], heads, view.shape[2] // heads))
        parts.append(split.with_layout(split.layout.permuted((0, 2, 1, 3))))
    scale = use.attribute("scale", 0.0) or parts[0].shape[-1] ** -0.5
    if use.attribute("unidirectional", 0):
        raise use.unsupported("a causal mask is not supported.")
    return [_joined(lowering, attend(b, parts[0], parts[1], parts[2], mask, scale))]


def _joined(lowering: Lowering, y: View) -> View:
    """(batch, heads, sequence, width) -> (batch, sequence, heads * width)."""
    y = y.with_layout(y.layout.permuted((0, 2, 1, 3)))
    return reshaped(lowering.b, y, (*y.shape[:2], y.shape[2] * y.shape[3]))


def _group_sizes(use: Use) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and how wide they are."""
    q = use.fact(0)
    heads, kv_heads = use.attribute("num_heads", 0), use.attribute("kv_num_heads", 0)
    all_heads = heads if use.has(1) else heads + 2 * kv_heads
    if heads < 1 or kv_heads < 1 or heads % kv_heads or q.rank != 3:
        raise use.failure("its heads do not fit.")
    if not isinstance(q.shape[2], int) or q.shape[2] % all_heads:
        raise use.failure(f"{q.shape[2]} elements are no {all_heads} heads.")
    return heads, kv_heads, q.shape[2] // all_heads


def _infer_groups(use: Use) -> list[Fact]:
    q, (heads, kv_heads, width) = use.fact(0), _group_sizes(use)
    for name in ("rotary_interleaved", "smooth_softmax"):
        if use.attribute(name, 0) == 1:
            raise use.unsupported(f"{name} is not supported.")
    if use.attribute("softcap", 0.0) or use.has(10) or use.has(11):
        raise use.unsupported("soft caps, biases of the scores and sinks are not supported.")
    if use.has(12) or use.has(13) or use.has(14) != use.has(15):
        raise use.unsupported("quantized caches, and norms of Q or K alone, are not supported.")
    for i in (14, 15):
        if use.has(i):
            use.check_same(use.fact(i).elements, width, "the sizes of a gain and of a head")
    _check_turning(use, width)
    past: Any = use.fact(3).shape[2] if use.has(3) else 0
    present = Fact(q.dtype, (q.shape[0], kv_heads, past + q.shape[1], width))
    for i in (3, 4):
        if use.has(i):
            wanted = (q.shape[0], kv_heads, past, width)
            for a, b in zip(use.fact(i).shape, wanted, strict=True):
                use.check_same(a, b, "the sizes of what is cached")
    return [Fact(q.dtype, (*q.shape[:2], heads * width)), present, present]


def _check_turning(use: Use, width: int) -> None:
    """Raises graph.invalid for tables that do not fit the heads, or positions of no use."""
    if not use.attribute("do_rotary", 0) or not use.has(7) or not use.has(8):
        return
    cos, sin = use.fact(7), use.fact(8)
    columns = cos.shape[-1] if cos.rank == 2 else 0
    if cos.shape != sin.shape or not isinstance(columns, int) or not 0 < 2 * columns <= width:
        raise use.failure(f"its tables do not fit heads of {width} elements.")
    if use.has(9) and use.fact(9).rank != 2:
        raise use.failure("its positions should have two axes.")


def _lower_groups(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    """Inputs: q (or q, k and v beside each other), k, v, cached keys and values, lengths (all
    sequences are taken to be whole), tables of cosines and sines, positions; last, the gains of the
    heads of Q and of K."""
    b, (heads, kv_heads, width) = lowering.b, _group_sizes(use)
    given = use.by_place(inputs, 16)
    q, k, v, past_k, past_v = given[:5]
    assert q
    if k is None or v is None:
        at = [0, heads * width, (heads + kv_heads) * width, (heads + 2 * kv_heads) * width]
        q, k, v = (q.with_layout(q.layout.sliced(2, at[i], 1, at[i + 1] - at[i])) for i in range(3))
    past = past_k.shape[2] if past_k else 0
    count = q.shape[1]
    split = [
        reshaped(b, x, (*x.shape[:2], n, width))
        for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))
    ]
    for i, gain in enumerate(given[14:]):
        if gain:
            eps = use.attribute("qk_norm_epsilon", 1e-6)
            split[i] = normalization(b, split[i], width, gain, None, eps, centred=False)
    if use.attribute("do_rotary", 0):
        cos, sin = given[7:9]
        if not cos or not sin:
            raise use.failure("it has no tables to rotate by.")
        places = given[9] or lowering.known(
            Known("i64", (1, count), tuple(range(past, past + count)))
        )
        tables = _tables(lowering, places, (cos, sin), split[0].shape[:2])
        rotated = 2 * cos.shape[-1]
        split[:2] = [rotate(lowering, x, tables, rotated) for x in split[:2]]
    q, k, v = (x.with_layout(x.layout.permuted((0, 2, 1, 3))) for x in split)
    k, v = (
        _appended(lowering, old, new) if old and past else contiguous(b, new)
        for old, new in ((past_k, k), (past_v, v))
    )
    group = heads // kv_heads
    shape = (q.shape[0], kv_heads, group)
    grouped = reshaped(b, q, (*shape, count, width))
    keys, values = (
        x.with_layout(x.layout.unsqueezed([2]).expanded((*shape, past + count, width)))
        for x in (k, v)
    )
    mask = causal_mask(lowering, count, past, use.attribute("local_window_size", -1))
    scale = use.attribute("scale", 0.0) or width**-0.5
    y = attend(b, grouped, keys, values, mask, scale)
    # (batch, groups, group, sequence, width) -> (batch, sequence, heads * width)
    y = y.with_layout(y.layout.permuted((0, 3, 1, 2, 4)))
    found = [reshaped(b, y, (q.shape[0], count, heads * width)), k, v]
    return [view for view, name in zip(found, use.node.outputs, strict=False) if name]


def _appended(lowering: Lowering, old: View, new: View) -> View:
    """Arrays behind each other along the axis of tokens."""
    length, count = old.shape[2], new.shape[2]
    y = new_view(lowering.b, "present", (*old.shape[:2], length + count, old.shape[3]))
    for view, at, size in ((old, 0, length), (new, length, count)):
        part = y.layout.sliced(2, at, 1, size)
        apply(lowering.b, "copy", [view], y.with_layout(part))
    return y


def causal_mask(lowering: Lowering, count: int, past: int, window: int) -> View:
    """(count, past + count): 0 where a token sees another, and a very small number elsewhere; with
    a ``window`` it sees that many of the last."""
    key = f"mask {count} {past} {window}"
    if key not in lowering.views:
        b, total = lowering.b, past + count
        own = lowering.known(Known("i64", (count, 1), tuple(range(past, total))))
        other = lowering.known(Known("i64", (1, total), tuple(range(total))))
        hidden = elementwise(b, "greater", [other, own], (count, total), "i32")
        if window > 0:
            last = lowering.known(Known("i64", (1, total), tuple(range(window, window + total))))
            early = elementwise(b, "less_equal", [last, own], (count, total), "i32")
            hidden = elementwise(b, "or", [hidden, early], (count, total), "i32")
        low, zero = (lowering.known(Known("f32", (), (x,))) for x in (-3e38, 0.0))
        lowering.views[key] = elementwise(b, "where", [hidden, low, zero], (count, total))
    return lowering.views[key]


_ONE = range(1, 2)
OPERATORS = (
    Operator(
        f"{CONTRIB}.MatMulNBits",
        _infer_matmul,
        _lower_quantized,
        frozenset({"K", "N", "bits", "block_size"}),
        range(3, 7),
        _ONE,
        {"accuracy_level": ..., "weight_prepacked": 0},
    ),
    Operator(
        f"{CONTRIB}.GatherBlockQuantized",
        _infer_gather,
        _lower_quantized,
        frozenset({"bits", "block_size", "gather_axis", "quantize_axis"}),
        range(3, 5),
        _ONE,
    ),
    Operator(
        f"{CONTRIB}.RotaryEmbedding",
        _infer_rotary,
        _lower_rotary,
        frozenset({"interleaved", "num_heads", "rotary_embedding_dim"}),
        range(4, 5),
        _ONE,
        {"is_packed_batching": 0, "scale": 1.0},
    ),
    Operator(
        f"{CONTRIB}.MultiHeadAttention",
        _infer_heads,
        _lower_heads,
        frozenset({"num_heads", "scale", "unidirectional"}),
        range(3, 9),
        _ONE,
        {"mask_filter_value": ...},
    ),
    Operator(
        f"{CONTRIB}.GroupQueryAttention",
        _infer_groups,
        _lower_groups,
        frozenset(
            {
                "num_heads",
                "kv_num_heads",
                "scale",
                "do_rotary",
                "rotary_interleaved",
                "local_window_size",
                "softcap",
                "smooth_softmax",
                "qk_norm_epsilon",
            }
        ),
        range(7, 17),
        _ONE,
        {
            "causal": 1,
            "qk_output": 0,
            "sliding_window_cache": 0,
            "k_quant_type": "NONE",
            "v_quant_type": "NONE",
        },
    ),
)
