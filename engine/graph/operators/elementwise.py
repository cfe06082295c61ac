"""Functions of single elements, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.graph.axes import Expression, UndeterminedError, concrete, is_concrete, same
from engine.graph.known import FLOATS, Known, cast, mapped
from engine.graph.model import DTYPES, OWN
from engine.graph.operator import Fact, Operator, Use
from engine.ops.elementwise import elementwise
from engine.ops.view import View

if TYPE_CHECKING:
    from engine.graph.lowering import Lowering

COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
BOOLEAN = (*COMPARISONS, "and", "or", "xor", "not", "is_nan")


def _infer(name: str, compute: Callable[..., Any]) -> Callable[[Use], list[Fact]]:
    def infer(use: Use) -> list[Fact]:
        facts = [use.fact(i) for i in range(len(use.facts))]
        first = facts[0].dtype
        if any(fact.dtype != first for fact in facts):
            raise use.failure(f"its inputs are {' and '.join(f.dtype for f in facts)}.")
        shape = use.broadcast(*(fact.shape for fact in facts))
        dtype = "bool" if name in BOOLEAN else first
        return [Fact(dtype, shape, _value(compute, dtype, shape, use.knowns))]

    return infer


def _value(
    compute: Callable[..., Any], dtype: str, shape: Any, knowns: tuple[Known, ...] | None
) -> Known | None:
    """The elements, if the CPU can know them."""
    if knowns is None or not is_concrete(shape):
        return None
    try:
        result = mapped(compute, dtype, shape, *knowns)
        return Known(dtype, shape, tuple(cast(value, dtype) for value in result.data))
    except (UndeterminedError, ArithmeticError, ValueError):
        return None


def _lower(name: str) -> Any:
    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        dtype = "i32" if name in BOOLEAN else inputs[-1].dtype
        return [elementwise(lowering.b, name, inputs, concrete(outputs[0].shape), dtype)]

    return lower


def _simple(op: str, name: str, compute: Callable[..., Any], inputs: int, **more: Any) -> Operator:
    return Operator(
        op, _infer(name, compute), _lower(name), inputs=range(inputs, inputs + 1), **more
    )


def _divided(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    if isinstance(a, Expression) or isinstance(b, Expression):
        return a // b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, Expression) or isinstance(b, Expression):
        raise UndeterminedError
    return float(a) ** b if b < 0 or isinstance(a, float) else a**b if b < 64 else math.pow(a, b)


def _unknown(*_: Any) -> Any:
    """A function that is left to the device: the arithmetic of shapes has no need of it."""
    raise UndeterminedError


def _extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    def compute(a: Any, b: Any) -> Any:
        if a is b or same(a, b):
            return a
        return pick(a, b)

    return compute


_UNARY: dict[str, tuple[str, Callable[..., Any]]] = {
    "Neg": ("neg", lambda x: -x),
    "Abs": ("abs", abs),
    "Sqrt": ("sqrt", math.sqrt),
    "Exp": ("exp", _unknown),
    "Log": ("log", _unknown),
    "Erf": ("erf", _unknown),
    "Tanh": ("tanh", _unknown),
    "Sigmoid": ("sigmoid", _unknown),
    "Relu": ("relu", _unknown),
    "Cos": ("cos", _unknown),
    "Sin": ("sin", _unknown),
    "Floor": ("floor", math.floor),
    "Ceil": ("ceil", math.ceil),
    "Reciprocal": ("reciprocal", lambda x: 1 / x),
    "Sign": ("sign", _unknown),
    "Not": ("not", lambda x: not x),
    "IsNaN": ("is_nan", lambda x: x != x),
}
_BINARY: dict[str, tuple[str, Callable[..., Any]]] = {
    "Add": ("add", lambda a, b: a + b),
    "Sub": ("sub", lambda a, b: a - b),
    "Mul": ("mul", lambda a, b: a * b),
    "Div": ("div", _divided),
    "Equal": ("equal", same),
    "Less": ("less", lambda a, b: a < b),
    "LessOrEqual": ("less_equal", lambda a, b: a <= b),
    "Greater": ("greater", lambda a, b: a > b),
    "GreaterOrEqual": ("greater_equal", lambda a, b: a >= b),
    "And": ("and", lambda a, b: a and b),
    "Or": ("or", lambda a, b: a or b),
    "Xor": ("xor", lambda a, b: a != b),
}


def _infer_pow(use: Use) -> list[Fact]:
    a, b = use.fact(0), use.fact(1)
    shape = use.broadcast(a.shape, b.shape)
    return [Fact(a.dtype, shape, _value(_power, a.dtype, shape, use.knowns))]


def _lower_pow(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    b, (x, exponent), shape = lowering.b, inputs, concrete(outputs[0].shape)
    known = use.fact(1).value
    if known and len(set(known.data)) == 1:
        if known.data[0] == 2:
            return [elementwise(b, "mul", [x, x], shape, x.dtype)]
        if known.data[0] == 0.5 and x.dtype == "f32":
            return [elementwise(b, "sqrt", [x], shape)]
    if exponent.dtype != x.dtype:
        name = "to_float" if x.dtype == "f32" else "to_int"
        exponent = elementwise(b, name, [exponent], exponent.shape, x.dtype)
    return [elementwise(b, "pow", [x, exponent], shape, x.dtype)]


def _infer_where(use: Use) -> list[Fact]:
    condition, a, b = use.fact(0), use.fact(1), use.fact(2)
    if condition.dtype != "bool" or a.dtype != b.dtype:
        raise use.failure(f"its inputs are {condition.dtype}, {a.dtype} and {b.dtype}.")
    shape = use.broadcast(condition.shape, a.shape, b.shape)
    choose: Callable[..., Any] = lambda c, x, y: x if c else y  # noqa: E731
    return [Fact(a.dtype, shape, _value(choose, a.dtype, shape, use.knowns))]


def _infer_many(pick: Callable[..., Any]) -> Callable[[Use], list[Fact]]:
    """Min and Max of any number of inputs."""

    def infer(use: Use) -> list[Fact]:
        facts = [use.fact(i) for i in range(len(use.facts))]
        shape = use.broadcast(*(fact.shape for fact in facts))
        found, value = use.knowns, None
        if found:
            value = found[0]
            for known in found[1:]:
                both = use.broadcast(value.shape, known.shape)
                value = _value(_extreme(pick), value.dtype, both, (value, known))
                if value is None:
                    break
        return [Fact(facts[0].dtype, shape, value)]

    return infer


def _lower_many(name: str) -> Any:
    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        result = inputs[0]
        for view in inputs[1:]:
            shape = use.broadcast(result.shape, view.shape)
            result = elementwise(lowering.b, name, [result, view], concrete(shape), view.dtype)
        return [result]

    return lower


def _infer_clip(use: Use) -> list[Fact]:
    x = use.fact(0)
    return [Fact(x.dtype, x.shape, x.value if len([f for f in use.facts if f]) == 1 else None)]


def _lower_clip(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    x, *bounds = inputs
    names = [name for i, name in ((1, "max"), (2, "min")) if use.has(i)]
    for name, bound in zip(names, bounds, strict=True):
        x = elementwise(lowering.b, name, [x, bound], x.shape, x.dtype)
    return [x]


def _infer_mod(use: Use) -> list[Fact]:
    if use.attribute("fmod", 0):
        raise use.unsupported("fmod is not supported.")
    return _infer("mod", lambda a, b: a % b)(use)


def _infer_gelu(use: Use) -> list[Fact]:
    if use.attribute("approximate", "none") not in ("none", "tanh"):
        raise use.unsupported("its approximation is not supported.")
    return _infer("gelu", _unknown)(use)


def _lower_gelu(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    name = "gelu_tanh" if use.attribute("approximate", "none") == "tanh" else "gelu"
    return [elementwise(lowering.b, name, inputs, inputs[0].shape)]


def _infer_cast(use: Use) -> list[Fact]:
    x, dtype = use.fact(0), DTYPES.get(use.attribute("to", 0))
    if dtype is None:
        raise use.unsupported("it casts to a type that is not supported.")
    value = None
    if x.value:
        try:
            value = Known(dtype, x.value.shape, tuple(cast(v, dtype) for v in x.value.data))
        except UndeterminedError:
            value = None
    return [Fact(dtype, x.shape, value)]


def _lower_cast(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    (x,), source, target = inputs, use.fact(0).dtype, outputs[0].dtype
    if target == "bool":
        if source == "bool":
            return [x]
        return [elementwise(lowering.b, "truth", [x], x.shape, "i32")]
    if (source in FLOATS) == (target in FLOATS):
        return [x]  # of another width only
    if target in FLOATS:
        return [elementwise(lowering.b, "to_float", [x], x.shape)]
    return [elementwise(lowering.b, "to_int", [x], x.shape, "i32")]


_OWN = range(1, 2)
OPERATORS = (
    *(_simple(op, name, compute, 1) for op, (name, compute) in _UNARY.items()),
    *(_simple(op, name, compute, 2) for op, (name, compute) in _BINARY.items()),
    Operator("Pow", _infer_pow, _lower_pow, inputs=range(2, 3)),
    Operator("Where", _infer_where, _lower("where"), inputs=range(3, 4)),
    Operator("Min", _infer_many(min), _lower_many("min"), inputs=range(1, 100)),
    Operator("Max", _infer_many(max), _lower_many("max"), inputs=range(1, 100)),
    Operator("Clip", _infer_clip, _lower_clip, inputs=range(1, 4)),
    Operator("Mod", _infer_mod, _lower("mod"), frozenset({"fmod"}), range(2, 3)),
    Operator("Gelu", _infer_gelu, _lower_gelu, frozenset({"approximate"}), opsets=range(20, 25)),
    Operator(f"{OWN}.Gelu", _infer_gelu, _lower_gelu, frozenset({"approximate"}), opsets=_OWN),
    _simple(f"{OWN}.Silu", "silu", _unknown, 1, opsets=_OWN),
    Operator(
        "Cast",
        _infer_cast,
        _lower_cast,
        frozenset({"to"}),
        ignored={"saturate": ..., "round_mode": ...},
    ),
)
