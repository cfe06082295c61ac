"""What sentence encoders add to an encoder: the mean of the tokens' hidden states, of length 1."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from engine.errors import OctavoError
from engine.graph.facts import infer
from engine.graph.known import Known
from engine.graph.model import OWN, Constant, Graph, Node

MASK = "attention_mask"
EMBEDDING = "embedding"
TINY = 1e-24  # added to the mean square, so that zero stays zero


def mean_pooling(graph: Graph) -> Graph:
    """A graph with one output, EMBEDDING (batch, hidden) f32: the mean of the first output
    (batch, sequence, hidden) over the tokens where the input MASK is 1, divided by its length
    (Reimers and Gurevych, 2019). A row without tokens is zero.

    Raises OctavoError graph.invalid if it has no such output or input.
    """
    fact = infer(graph).get(graph.outputs[0])
    is_hidden = fact and fact.rank == 3 and isinstance(fact.shape[2], int)
    if not (fact and is_hidden and MASK in {value.name for value in graph.inputs}):
        raise OctavoError("graph.invalid", "The graph is no encoder of sentences.")
    width = cast(int, fact.shape[2])
    known = {
        "tokens": Known("i64", (1,), (1,)),
        "gain": Known("f32", (width,), (width**-0.5,) * width),
    }
    constants = {
        (name := f"pooling.{key}"): Constant(name, k.dtype, k.shape, k) for key, k in known.items()
    }
    nodes: list[Node] = []

    def op(kind: str, *inputs: str, **attributes: int) -> str:
        output = f"pooling.{len(nodes)}"
        nodes.append(Node(output, kind, inputs, (output,), attributes))
        return output

    # In few dispatches: the sum over the tokens is a product, it points where the mean does, and
    # what has the mean square 1 / width has the length 1.
    mask = op("Unsqueeze", op("Cast", MASK, to=1), "pooling.tokens")
    total = op("Squeeze", op("MatMul", mask, graph.outputs[0]), "pooling.tokens")
    norm, length = f"{OWN}.RMSNorm", {"axis": -1, "epsilon": TINY}
    nodes.append(Node(EMBEDDING, norm, (total, "pooling.gain"), (EMBEDDING,), length))
    return replace(
        graph,
        outputs=(EMBEDDING,),
        nodes=(*graph.nodes, *nodes),
        constants={**graph.constants, **constants},
    )
