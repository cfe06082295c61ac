"""Every operator against onnxruntime, on random inputs of hostile shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import check, floats, node_model


def positive(*shape: int) -> np.ndarray:
    return np.asarray(np.abs(floats(*shape)) + 0.1, np.float32)


def whole(*shape: int, low: int = -5, high: int = 6, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng([seed, *shape]).integers(low, high, shape))


def truth(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(whole(*shape, seed=seed) > 0)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SHAPES = [(), (1,), (0,), (7,), (2, 3), (3, 1, 2), (2, 0, 3), (1, 2, 3, 4)]
PAIRS = [
    ((), ()),
    ((3,), ()),
    ((), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((4, 1, 3), (2, 1)),
    ((0, 3), (1, 3)),
    ((2, 3), (2, 3)),
    ((1, 1, 5), (2, 3, 5)),
]
UNARY = (
    "Neg",
    "Abs",
    "Exp",
    "Erf",
    "Tanh",
    "Sigmoid",
    "Relu",
    "Cos",
    "Sin",
    "Floor",
    "Ceil",
    "Sign",
    "Identity",
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_unary(tmp_path: Path, op: str, shape: tuple[int, ...]) -> None:
    check(tmp_path, *node_model(op, [floats(*shape)]))


@pytest.mark.parametrize("op", ["Sqrt", "Log", "Reciprocal"])
def test_unary_of_positive_numbers(tmp_path: Path, op: str) -> None:
    check(tmp_path, *node_model(op, [positive(3, 5)]))


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater", "Min", "Max"]
)
@pytest.mark.parametrize("kind", ["floats", "ints"])
def test_binary(tmp_path: Path, op: str, shapes: tuple[Any, Any], kind: str) -> None:
    a, b = shapes
    if kind == "floats":
        inputs = [floats(*a), floats(*b, seed=1)]
    else:
        inputs = [whole(*a), whole(*b, low=1, seed=1)]
    check(tmp_path, *node_model(op, inputs))


@pytest.mark.parametrize("op", ["LessOrEqual", "GreaterOrEqual"])
def test_comparisons(tmp_path: Path, op: str) -> None:
    check(tmp_path, *node_model(op, [whole(4, 3), whole(3)]))


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(tmp_path: Path, op: str, shapes: tuple[Any, Any]) -> None:
    check(tmp_path, *node_model(op, [truth(*shapes[0]), truth(*shapes[1], seed=1)]))


def test_not(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Not", [truth(2, 3)]))


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0, 1.7])
def test_pow_by_a_constant(tmp_path: Path, exponent: float) -> None:
    constants = {1: np.array(exponent, np.float32)}
    check(tmp_path, *node_model("Pow", [positive(3, 4)], constants=constants))


def test_pow(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Pow", [positive(3, 4), floats(4)]))
    check(tmp_path, *node_model("Pow", [floats(3, 4), whole(4, low=0)]))


@pytest.mark.parametrize(
    "shapes", [((), (2,), (3, 1)), ((2, 1), (2, 3), ()), ((0,), (1,), (1,))], ids=str
)
def test_where(tmp_path: Path, shapes: Any) -> None:
    c, a, b = shapes
    check(tmp_path, *node_model("Where", [truth(*c), floats(*a), floats(*b, seed=1)]))


def test_many_inputs(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Max", [floats(2, 1), floats(3), floats()]))
    check(tmp_path, *node_model("Min", [floats(2, 1)]))


@pytest.mark.parametrize("bounds", [(-1, 1), (None, 1), (-1, None), (None, None)], ids=str)
def test_clip(tmp_path: Path, bounds: Any) -> None:
    inputs = [floats(3, 4), *(None if b is None else np.array(b, np.float32) for b in bounds)]
    while inputs[-1] is None:
        inputs.pop()
    check(tmp_path, *node_model("Clip", inputs))


def test_mod(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Mod", [whole(3, 4), whole(4, low=1)]))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(tmp_path: Path, approximate: str) -> None:
    check(tmp_path, *node_model("Gelu", [floats(3, 4)], opset=20, approximate=approximate))


@pytest.mark.parametrize("to", [1, 6, 7, 9, 10])
@pytest.mark.parametrize("kind", ["floats", "ints", "bools"])
def test_cast(tmp_path: Path, kind: str, to: int) -> None:
    x = {"floats": floats(2, 3).round(), "ints": whole(2, 3), "bools": truth(2, 3)}[kind]
    check(tmp_path, *node_model("Cast", [x], to=to))


@pytest.mark.parametrize("perm", [None, (0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 4), (1, 3, 1)])
def test_transpose(tmp_path: Path, shape: Any, perm: Any) -> None:
    more = {"perm": perm} if perm else {}
    check(tmp_path, *node_model("Transpose", [floats(*shape)], **more))


def test_transpose_of_a_scalar(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Transpose", [floats()]))


@pytest.mark.parametrize(
    ("shape", "new"),
    [
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (0, -1)),
        ((2, 3, 4), (-1,)),
        ((1,), ()),
        ((), (1, 1)),
        ((0, 3), (3, -1, 1)),
        ((2, 6), (2, 2, 3, 1)),
    ],
)
def test_reshape(tmp_path: Path, shape: Any, new: Any) -> None:
    check(tmp_path, *node_model("Reshape", [floats(*shape)], constants={1: ints(*new)}))


def test_reshape_keeps_zero(tmp_path: Path) -> None:
    constants = {1: ints(0, 5)}
    check(tmp_path, *node_model("Reshape", [floats(0, 3)], constants=constants, allowzero=1))


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 3])
def test_flatten(tmp_path: Path, axis: int) -> None:
    check(tmp_path, *node_model("Flatten", [floats(2, 3, 4)], axis=axis))


@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2), (-1, 0), (1, 3)])
def test_unsqueeze_and_squeeze(tmp_path: Path, axes: tuple[int, ...]) -> None:
    x = floats(2, 3)
    check(tmp_path, *node_model("Unsqueeze", [x], constants={1: ints(*axes)}))
    check(tmp_path, *node_model("Unsqueeze", [x], opset=11, axes=axes))
    check(tmp_path, *node_model("Squeeze", [np.expand_dims(x, axes)], constants={1: ints(*axes)}))
    check(tmp_path, *node_model("Squeeze", [np.expand_dims(x, axes)]))


@pytest.mark.parametrize(
    ("shape", "new"),
    [((3, 1), (2, 1, 6)), ((), (2, 2)), ((1,), (0,)), ((3, 4), (1,)), ((2, 1), (2, 3))],
)
def test_expand(tmp_path: Path, shape: Any, new: Any) -> None:
    check(tmp_path, *node_model("Expand", [floats(*shape)], constants={1: ints(*new)}))


BIG = 2**63 - 1


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1,), (3,), (0,), None),
        ((0, 1), (BIG, -1), (1, 0), None),
        ((-3,), (-1,), (-1,), (1,)),
        ((-1,), (-BIG,), (1,), (-1,)),
        ((5,), (0,), (1,), (-2,)),
        ((3,), (1,), (0,), (1,)),
        ((0,), (100,), (0,), (3,)),
        ((-100,), (2,), (0,), None),
        ((100,), (-100,), (1,), (-3,)),
    ],
)
def test_slice(tmp_path: Path, starts: Any, ends: Any, axes: Any, steps: Any) -> None:
    constants = {1: ints(*starts), 2: ints(*ends), 3: ints(*axes)}
    if steps:
        constants[4] = ints(*steps)
    check(tmp_path, *node_model("Slice", [floats(4, 6)], constants=constants))


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 1)], [(2, 0), (2, 3), (2, 0)], [(2, 3)]], ids=str)
@pytest.mark.parametrize("axis", [1, -1])
def test_concat(tmp_path: Path, shapes: Any, axis: int) -> None:
    inputs = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    check(tmp_path, *node_model("Concat", inputs, axis=axis))
    check(tmp_path, *node_model("Concat", [x.T for x in inputs], axis=0))


def test_split(tmp_path: Path) -> None:
    x = floats(6, 4)
    check(tmp_path, *node_model("Split", [x], 2, constants={1: ints(1, 3)}, axis=-1))
    check(tmp_path, *node_model("Split", [x], 3, axis=0, num_outputs=3))
    check(tmp_path, *node_model("Split", [floats(7)], 3, axis=0, num_outputs=3))
    check(tmp_path, *node_model("Split", [x], 2, opset=11, axis=1, split=[4, 0]))


def test_tile(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Tile", [floats(2, 3)], constants={1: ints(2, 1)}))
    check(tmp_path, *node_model("Tile", [floats(2, 3)], constants={1: ints(0, 2)}))
    check(tmp_path, *node_model("Tile", [floats(1, 2, 3)], constants={1: ints(3, 2, 2)}))


@pytest.mark.parametrize("k", [None, 0, 1, -2, 5])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 3), (0, 3)])
def test_trilu(tmp_path: Path, shape: Any, upper: int, k: Any) -> None:
    constants = {} if k is None else {1: np.array(k, np.int64)}
    check(tmp_path, *node_model("Trilu", [floats(*shape)], constants=constants, upper=upper))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, (0,), (-1,), (0, 2), (1,), (-1, -2, -3)])
def test_reduce(tmp_path: Path, op: str, keepdims: int, axes: Any) -> None:
    x = floats(2, 3, 4)
    constants = {1: ints(*axes)} if axes else {}
    check(tmp_path, *node_model(op, [x], constants=constants, keepdims=keepdims))
    if op != "ReduceSum":
        more = {"axes": axes} if axes else {}
        check(tmp_path, *node_model(op, [x], opset=13, keepdims=keepdims, **more))


def test_reduce_nothing(tmp_path: Path) -> None:
    check(tmp_path, *node_model("ReduceSum", [floats(2, 0, 3)], constants={1: ints(1)}))
    check(tmp_path, *node_model("ReduceSum", [floats(0, 3)], constants={1: ints(1)}))
    check(tmp_path, *node_model("ReduceSum", [floats(2, 3)], noop_with_empty_axes=1))
    check(tmp_path, *node_model("ReduceSum", [floats()]))
    check(tmp_path, *node_model("ReduceSum", [whole(3, 4)], constants={1: ints(0)}))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (1, 1), (0, 3)])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(tmp_path: Path, op: str, shape: Any) -> None:
    for axis in range(-len(shape), len(shape)):
        if shape[axis]:
            check(tmp_path, *node_model(op, [floats(*shape) * 20], axis=axis))


@pytest.mark.parametrize("axis", [-1, 1, -2])
@pytest.mark.parametrize("biased", [False, True])
def test_layer_normalization(tmp_path: Path, axis: int, biased: bool) -> None:
    x = floats(2, 3, 4)
    wide = x.shape[axis:]
    inputs = [x, floats(*wide, seed=1), *([floats(*wide, seed=2)] if biased else [])]
    check(tmp_path, *node_model("LayerNormalization", inputs, axis=axis, epsilon=1e-3))


def test_rms_normalization(tmp_path: Path) -> None:
    inputs = [floats(2, 3, 8), floats(8, seed=1)]
    check(tmp_path, *node_model("SimplifiedLayerNormalization", inputs, epsilon=1e-3))


@pytest.mark.parametrize("biased", [False, True])
def test_skip_normalization(tmp_path: Path, biased: bool) -> None:
    x, skip, gain, beta, bias = (
        floats(2, 3, 8),
        floats(2, 3, 8, seed=1),
        *(floats(8, seed=i) for i in (2, 3, 4)),
    )
    inputs = [x, skip, gain, beta, *([bias] if biased else [])]
    contrib = {"domain": "com.microsoft", "epsilon": 1e-3}
    check(tmp_path, *node_model("SkipLayerNormalization", inputs, **contrib))
    inputs = [x, skip, gain, *([bias] if biased else [])]
    check(tmp_path, *node_model("SkipSimplifiedLayerNormalization", inputs, **contrib))


PRODUCTS = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (5, 3, 4)),
    ((3,), (5, 3, 4)),
    ((2, 0), (0, 3)),
    ((0, 2), (2, 3)),
    ((2, 2, 2, 2, 3), (2, 1, 2, 3, 1)),
]


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_matmul(tmp_path: Path, shapes: Any) -> None:
    check(tmp_path, *node_model("MatMul", [floats(*shapes[0]), floats(*shapes[1], seed=1)]))


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (4,), (2, 1), (), (2, 4)])
def test_gemm(tmp_path: Path, transposed: Any, c: Any) -> None:
    a = floats(3, 2) if transposed[0] else floats(2, 3)
    b = floats(4, 3, seed=1) if transposed[1] else floats(3, 4, seed=1)
    inputs = [a, b, *([] if c is None else [floats(*c, seed=2)])]
    more = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5, "beta": 2.0}
    check(tmp_path, *node_model("Gemm", inputs, **more))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("bind,bjnd->bnij", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij->ji", [(2, 3)]),
        ("ij->i", [(2, 3)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ij,k->i", [(2, 3), (4,)]),
        ("ab,bc", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(tmp_path: Path, equation: str, shapes: Any) -> None:
    inputs = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    check(tmp_path, *node_model("Einsum", inputs, equation=equation))


@pytest.mark.parametrize("indices", [(), (1,), (0,), (2, 3), (2, 0)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("fixed", [False, True])
def test_gather(tmp_path: Path, axis: int, indices: Any, fixed: bool) -> None:
    x, chosen = floats(4, 5), whole(*indices, low=-4, high=4)
    inputs, constants = ([x], {1: chosen}) if fixed else ([x, chosen], {})
    check(tmp_path, *node_model("Gather", inputs, constants=constants, axis=axis))


def test_scatter(tmp_path: Path) -> None:
    x = floats(4, 5, 2)
    check(tmp_path, *node_model("ScatterND", [x, ints(3, -4).reshape(2, 1), floats(2, 5, 2)]))
    places = np.array([[[0, 1], [-1, 4]]], np.int64)
    check(tmp_path, *node_model("ScatterND", [x, places, floats(1, 2, 2)]))
    check(tmp_path, *node_model("ScatterND", [x, whole(0, 2), floats(0, 2)]))


def test_gather_by_several_indices(tmp_path: Path) -> None:
    x = floats(3, 4, 5)
    for places in (
        whole(2, 1, low=-3, high=3),
        whole(2, 3, 2, low=-3, high=3),
        whole(3, low=0, high=3),
    ):
        check(tmp_path, *node_model("GatherND", [x, places]))
    batches = whole(3, 2, 1, low=-4, high=4)
    check(tmp_path, *node_model("GatherND", [x, batches], batch_dims=1))
    batches = whole(3, 4, 1, low=-5, high=5)
    check(tmp_path, *node_model("GatherND", [x, batches], batch_dims=2))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(tmp_path: Path, axis: int) -> None:
    x = floats(3, 4, 5)
    check(tmp_path, *node_model("GatherElements", [x, whole(2, 3, 4, low=-3, high=3)], axis=axis))
    check(tmp_path, *node_model("GatherElements", [x, whole(1, 1, 1, low=0, high=3)], axis=axis))
    check(tmp_path, *node_model("GatherElements", [x, whole(0, 3, 4)], axis=axis))


def test_is_nan(tmp_path: Path) -> None:
    x = np.array([1, np.nan, np.inf, -np.inf, -np.nan], np.float32)
    check(tmp_path, *node_model("IsNaN", [x]))


def test_sizes(tmp_path: Path) -> None:
    check(tmp_path, *node_model("Shape", [floats(2, 0, 3)]))
    check(tmp_path, *node_model("Shape", [floats(2, 4, 3)], start=-2))
    check(tmp_path, *node_model("Size", [floats(2, 4, 3)]))
    value = onnx.numpy_helper.from_array(np.array([3], np.int64))
    constants = {0: ints(2, 3)}
    check(tmp_path, *node_model("ConstantOfShape", [], constants=constants, value=value))
    constants = {0: ints(300, 300)}
    check(tmp_path, *node_model("ConstantOfShape", [], constants=constants))
    bounds = {0: np.array(7), 1: np.array(-2), 2: np.array(-2)}
    check(tmp_path, *node_model("Range", [], constants=bounds))
