"""The registry: every operator that is supported, by name."""

from engine.graph.operator import Operator
from engine.graph.operators import (
    contrib,
    elementwise,
    gathering,
    movement,
    products,
    reduction,
    sizes,
)

_FILES = (elementwise, movement, sizes, products, reduction, gathering, contrib)
OPERATORS: dict[str, Operator] = {
    operator.name: operator for file in _FILES for operator in file.OPERATORS
}
