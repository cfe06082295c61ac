"""What sentence encoders add to an encoder: the mean of the tokens' hidden states, of length 1."""

from __future__ import annotations

from dataclasses import replace

from engine.errors import OctavoError
from engine.graph.facts import infer
from engine.graph.known import Known
from engine.graph.model import Constant, Graph, Node

MASK = "attention_mask"
EMBEDDING = "embedding"


def mean_pooling(graph: Graph) -> Graph:
    """A graph with one output, EMBEDDING (batch, hidden) f32: the mean of the first output
    (batch, sequence, hidden) over the tokens where the input MASK is 1, divided by its length
    (Reimers and Gurevych, 2019). A row without tokens is zero.

    Raises OctavoError graph.invalid if it has no such output or input.
    """
    fact = infer(graph).get(graph.outputs[0])
    if not fact or fact.rank != 3 or MASK not in {value.name for value in graph.inputs}:
        raise OctavoError("graph.invalid", "The graph is no encoder of sentences.")
    known = {
        "ahead": Known("i64", (1,), (2,)),
        "tokens": Known("i64", (1,), (1,)),
        "inside": Known("i64", (1,), (-1,)),
        "tiny": Known("f32", (), (1e-12,)),
    }
    constants = {
        (name := f"pooling.{key}"): Constant(name, k.dtype, k.shape, k) for key, k in known.items()
    }
    nodes: list[Node] = []

    def op(kind: str, *inputs: str, **attributes: int) -> str:
        output = f"pooling.{len(nodes)}"
        nodes.append(Node(output, kind, inputs, (output,), attributes))
        return output

    mask = op("Unsqueeze", op("Cast", MASK, to=1), "pooling.ahead")
    # The sum points where the mean does, and its length is not kept.
    total = op("ReduceSum", op("Mul", graph.outputs[0], mask), "pooling.tokens", keepdims=0)
    square = op("ReduceSum", op("Mul", total, total), "pooling.inside", keepdims=1)
    length = op("Max", op("Sqrt", square), "pooling.tiny")
    nodes.append(Node(EMBEDDING, "Div", (total, length), (EMBEDDING,)))
    return replace(
        graph,
        outputs=(EMBEDDING,),
        nodes=(*graph.nodes, *nodes),
        constants={**graph.constants, **constants},
    )
