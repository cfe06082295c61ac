"""Functions of single elements, with broadcasting, and copies: one kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from engine.errors import OctavoError
from engine.ops.layout import Layout, collapsed
from engine.ops.view import View, elements_of, new_view
from engine.plan import Call, DType, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

WORKGROUP = 64
RANK = 6  # axes that the kernel knows, once neighbours are joined


@dataclass(frozen=True)
class Function:
    """``code`` is its number in wgsl/elementwise.wgsl; ``compute`` means the same in NumPy."""

    code: int
    compute: Callable[..., Any]


def _np(name: str) -> Callable[..., Any]:
    def compute(*values: Any) -> Any:
        import numpy as np

        return getattr(np, name)(*values)

    return compute


def _sigmoid(x: Any) -> Any:
    import numpy as np

    return 1 / (1 + np.exp(-x))


def erf(x: Any) -> Any:
    """The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    import numpy as np

    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    series = np.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(factor)) * t
    return np.sign(x) * (1 - series * np.exp(-x * x))


def _gelu(x: Any) -> Any:
    import numpy as np

    return x / 2 * (1 + erf(x * np.float32(np.sqrt(0.5))))


def _gelu_tanh(x: Any) -> Any:
    import numpy as np

    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return x / 2 * (1 + np.tanh(inner))


def _quotient(a: Any, b: Any) -> Any:
    """Whole numbers are truncated."""
    import numpy as np

    if a.dtype.kind == "f":
        return a / b
    return np.fix(a.astype("f8") / np.where(b == 0, 1, b))


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of b, as Python's."""
    import numpy as np

    return np.mod(a, np.where(b == 0, 1, b)) if a.dtype.kind == "i" else np.mod(a, b)


def _power(a: Any, b: Any) -> Any:
    import numpy as np

    return np.power(a.astype("f8"), b) if a.dtype.kind == "i" else np.power(a, b)


def _logical(name: str) -> Callable[..., Any]:
    def compute(*values: Any) -> Any:
        import numpy as np

        return getattr(np, f"logical_{name}")(*(value != 0 for value in values))

    return compute


# Comparisons and logic give i32; the others what they take.
FUNCTIONS: dict[str, Function] = {
    "copy": Function(0, lambda x: x),
    "neg": Function(1, _np("negative")),
    "abs": Function(2, _np("abs")),
    "sqrt": Function(3, _np("sqrt")),
    "exp": Function(4, _np("exp")),
    "log": Function(5, _np("log")),
    "erf": Function(6, erf),
    "tanh": Function(7, _np("tanh")),
    "sigmoid": Function(8, _sigmoid),
    "relu": Function(9, lambda x: x.clip(0)),
    "gelu": Function(10, _gelu),
    "gelu_tanh": Function(11, _gelu_tanh),
    "silu": Function(12, lambda x: x * _sigmoid(x)),
    "cos": Function(13, _np("cos")),
    "sin": Function(14, _np("sin")),
    "floor": Function(15, _np("floor")),
    "ceil": Function(16, _np("ceil")),
    "reciprocal": Function(17, lambda x: 1 / x),
    "sign": Function(18, _np("sign")),
    "not": Function(19, _logical("not")),
    "truth": Function(20, lambda x: x != 0),
    "to_float": Function(21, lambda x: x.astype("f4")),
    "to_int": Function(22, lambda x: x.clip(-(2**31), 2**31 - 128).astype("i4")),
    "is_nan": Function(23, _np("isnan")),
    "add": Function(30, _np("add")),
    "sub": Function(31, _np("subtract")),
    "mul": Function(32, _np("multiply")),
    "div": Function(33, _quotient),
    "pow": Function(34, _power),
    "min": Function(35, _np("minimum")),
    "max": Function(36, _np("maximum")),
    "mod": Function(37, _remainder),
    "equal": Function(40, _np("equal")),
    "less": Function(41, _np("less")),
    "less_equal": Function(42, _np("less_equal")),
    "greater": Function(43, _np("greater")),
    "greater_equal": Function(44, _np("greater_equal")),
    "and": Function(45, _logical("and")),
    "or": Function(46, _logical("or")),
    "xor": Function(47, _logical("xor")),
    "where": Function(50, lambda condition, a, b: _np("where")(condition != 0, a, b)),
}
OPERANDS = ("a", "b", "c")


def elementwise(
    b: PlanBuilder, name: str, inputs: Sequence[View], shape: Sequence[int], dtype: DType = "f32"
) -> View:
    """The function ``name`` of FUNCTIONS of one to three inputs, each broadcast to ``shape``."""
    y = new_view(b, name, shape, dtype)
    apply(b, name, inputs, y)
    return y


def apply(b: PlanBuilder, name: str, inputs: Sequence[View], y: View) -> None:
    """As ``elementwise``, into the elements of y. Without elements nothing is done."""
    if not y.elements:
        return
    views = [*(view.layout.expanded(y.shape) for view in inputs), y.layout]
    layouts = collapsed(views)
    if len(layouts[0].shape) > RANK:
        raise OctavoError("graph.operator", f"{name}: more than {RANK} axes are not supported.")
    function = FUNCTIONS[name]
    operands = OPERANDS[: len(inputs)]
    overrides: dict[str, int | float] = {
        "FUNCTION": function.code,
        "INTEGER": int(inputs[-1].dtype != "f32"),
        "COUNT": y.elements,
        **_numbers("Y", layouts[-1]),
    }
    sizes = (*[1] * (RANK - len(layouts[0].shape)), *layouts[0].shape)
    overrides |= {f"N{i}": size for i, size in enumerate(sizes) if i}
    for operand, layout in zip(operands, layouts[:-1], strict=True):
        overrides |= _numbers(operand.upper(), layout)
    lib = [f"operand_{o}" if o in operands else f"operand_{o}_none" for o in OPERANDS]
    slots = [Slot(o, "array<u32>") for o in operands]
    shader = Shader(
        "elementwise",
        (*slots, Slot("y", "array<u32>", "read_write")),
        lib=("index", "functions", *lib),
        consts={"WORKGROUP": WORKGROUP},
        overrides=overrides,
    )

    def reference(a: Mapping[str, Any]) -> None:
        import numpy as np

        values = [elements_of(a[o], layout) for o, layout in zip(operands, views, strict=False)]
        with np.errstate(all="ignore"):  # infinities and what is no number are as good as others
            elements_of(a["y"], y.layout)[...] = function.compute(*values)

    args = {o: view.tensor for o, view in zip(operands, inputs, strict=True)} | {"y": y.tensor}
    b.call(Call(name, args, ("y",), reference, shader, Grid.rows(ceil(y.elements / WORKGROUP))))


def contiguous(b: PlanBuilder, x: View) -> View:
    """The same elements row-major: x itself, or a copy."""
    return x if x.layout.contiguous else elementwise(b, "copy", [x], x.shape, x.dtype)


def tensor_of(b: PlanBuilder, x: View, *shape: int) -> Tensor:
    """The same elements as a tensor of ``shape``: x's own, or a copy. What outlives a plan is
    known by its name, so that it may have another shape there, but not another size."""
    x = contiguous(b, x)
    if x.tensor.role != "activation" and prod(x.tensor.shape) != x.elements:
        x = elementwise(b, "copy", [x], x.shape, x.dtype)
    return replace(x.tensor, shape=shape)


def reshaped(b: PlanBuilder, x: View, shape: Sequence[int]) -> View:
    """The same elements in another shape, of a copy where there is no other way."""
    layout = x.layout.reshaped(shape)
    if layout is None:
        layout = Layout.of(shape)
        x = contiguous(b, x)
    return x.with_layout(layout)


def _numbers(operand: str, layout: Layout) -> dict[str, int | float]:
    """Offset and strides of an operand."""
    strides = (*[0] * (RANK - len(layout.strides)), *layout.strides)
    return {f"{operand}_AT": layout.offset} | {f"{operand}{i}": s for i, s in enumerate(strides)}
