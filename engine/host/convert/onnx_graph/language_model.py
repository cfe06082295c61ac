"""A language model in an ONNX file, as the converter has models: the graph is recognized, and its
matrices get the names that Hugging Face gives them.

What is recognized runs as the GGUF file of the same model does; everything else stays a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from engine.errors import OctavoError
from engine.graph.known import Known
from engine.graph.model import Constant, Graph, Node
from engine.graph.passes import PASSES
from engine.graph.passes.rewriting import constant_from
from engine.host.convert.families import FAMILIES, family_of
from engine.host.convert.folder import CONFIG, model_of, read_config
from engine.host.convert.hyperparameters import Config, llama3_factors, read_rope, read_window
from engine.host.convert.model import Bytes, Floats, Model, Tensor
from engine.host.convert.onnx_graph.glue import Heads
from engine.host.convert.onnx_graph.matching import FAR, Matched, Matcher, array_of, longest_table
from engine.host.convert.onnx_graph.skeleton import Skeleton, UnlikeError, skeleton_of
from engine.host.errors import HostError
from engine.models import ARCHITECTURES
from engine.models.llama import Llama
from engine.models.rope import Rope

# What makes the products; passes that join them would hide which is which.
READING = (
    "known values",
    "identities",
    "RMS normalization",
    "quantized matrices",
    "products with constants",
    "biases",
    "attention",
    "dead nodes",
)
LOGITS = "logits"
# How many logits an answer needs: exports for the web have it as an input.
LAST_ONLY = ("num_logits_to_keep", "logits_to_keep")
SHORTEST = 8  # tokens of a context
WHOLE = "model"  # a file of this name is called like its folder


def language_model(source: Path, graph: Graph) -> Model | None:
    """The model in ``graph``, which was read from ``source``, if it is one that the engine runs:
    config.json and the tokenizer lie beside it, or a folder above (as in exports for the web).

    None, after a note that says why, if it stays a graph. Raises HostError, with the node's name
    where there is one, if config.json and the graph contradict each other, or a file is missing.
    """
    parents = source.resolve().parents
    folder = next((f for f in parents[:2] if (f / CONFIG).is_file()), None)
    try:
        if folder is None:
            raise UnlikeError(f"no {CONFIG} lies beside it")
        config = read_config(folder)
        names = config.get("architectures", [])
        if not isinstance(names, list) or not names or names[0] not in FAMILIES:
            raise UnlikeError(f"{config.path} names none of {', '.join(FAMILIES)}")
        found, tied = _tensors(_prepared(graph), config)
    except (UnlikeError, OctavoError) as error:
        print(f"note: no language model, but a graph: {error}", flush=True)
        return None
    own = Config(config.fields | {"tie_word_embeddings": tied}, config.path)
    name = folder.name if source.stem == WHOLE else f"{folder.name}-{source.stem}"
    return model_of(folder, name, own, found)


def _prepared(graph: Graph) -> Graph:
    """The graph after the passes that are needed here."""
    given = {v.name: v for v in graph.inputs if v.name in LAST_ONLY}
    shapes = {name: tuple(1 for _ in value.shape) for name, value in given.items()}
    ones = {n: constant_from(Known("i64", shape, (1,)), n) for n, shape in shapes.items()}
    inputs = tuple(value for value in graph.inputs if value.name not in given)
    graph = replace(graph, inputs=inputs, constants={**graph.constants, **ones})
    for name in READING:
        graph = PASSES[name](graph)
    return graph


def _tensors(graph: Graph, config: Config) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a graph, by the names of Hugging Face, and whether the head has the
    embedding's matrix."""
    kind = ARCHITECTURES.get(family_of(config).architecture)
    if not (isinstance(kind, type) and issubclass(kind, Llama)):
        raise UnlikeError(f"{config.path}: only families like Llama are supported")
    if kind.post_norms or kind.fused or kind.act != "silu":
        raise UnlikeError(f"{config.path}: {kind.__name__} is not supported as an ONNX file")
    skeleton = skeleton_of(graph)
    _check_sizes(graph, skeleton, config)
    context = config.count("max_position_embeddings")
    if context < SHORTEST:
        raise UnlikeError(f"{config.path}: a context of {context} tokens is too short")
    eps, window = config.number("rms_norm_eps", 1e-6), read_window(config)
    heads = Heads(config.heads, config.kv_heads, config.head_dim, window, eps)
    rope = _rope_table(config, min(context, max(FAR, longest_table(graph))))
    matcher = Matcher(graph, skeleton, heads, rope, context, kind.head_norm)
    logits = LOGITS if LOGITS in graph.outputs else graph.outputs[0]
    matcher.end(skeleton.head, logits)
    embedding = graph.constants[skeleton.embedding.inputs[0]]
    head = graph.constants[skeleton.head.inputs[1]]
    _no_bias(graph, skeleton.head)
    count = len(skeleton.layers)
    final = matcher.norm(skeleton.stream(count), skeleton.head.inputs[0])
    tied = _equal(embedding, head)
    found = [_matrix("model.embed_tokens.weight", embedding), _vector("model.norm.weight", final)]
    found += [] if tied else [_matrix("lm_head.weight", head)]
    for i, layer in enumerate(skeleton.layers):
        _no_bias(graph, layer.out, *layer.units, layer.down)
        found += _layer(graph, skeleton, i, matcher.layer(i), heads, kind.qkv_bias)
    return {tensor.name: tensor for tensor in found}, tied


def _rope_table(config: Config, count: int) -> Any:
    """(count, width / 2, 2), for so many positions: what the engine makes of config.json."""
    try:
        rope = read_rope(config)
    except HostError as error:
        raise UnlikeError(str(error)) from None
    if rope.dim != config.head_dim or rope.kind not in ("default", "linear", "llama3"):
        raise UnlikeError(f"{config.path}: this rotary embedding ({rope.kind}) is not supported")
    scale = rope.scaling.number("factor") if rope.kind == "linear" else 1.0
    factors = llama3_factors(rope) if rope.kind == "llama3" else []
    table = Rope(config.head_dim, rope.dim, rope.base, scale=scale).table(count, factors)
    return np.frombuffer(table, np.float32).reshape(count, -1, 2)


def _check_sizes(graph: Graph, skeleton: Skeleton, config: Config) -> None:
    """Raises HostError for the first product that has not the shape that config.json says."""
    count, wanted = len(skeleton.layers), config.layers
    if count != wanted:
        raise HostError(
            f"{config.path} says {wanted} layers, but {count} lie in front of "
            f"{skeleton.head.label}."
        )
    if config.heads % config.kv_heads or config.head_dim % 8:
        raise HostError(
            f"{config.path}: {config.heads} heads of {config.head_dim} cannot share "
            f"{config.kv_heads} KV heads."
        )
    hidden, ffn = config.count("hidden_size"), config.count("intermediate_size")
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def check(node: Node, shape: Sequence[int]) -> None:
        name = node.inputs[0 if node is skeleton.embedding else 1]
        if graph.constants[name].shape != tuple(shape):
            own, said = graph.constants[name].shape, tuple(shape)
            raise HostError(f"{node.label} has a matrix {own}, but {config.path} says {said}.")

    rows = graph.constants[skeleton.embedding.inputs[0]].shape[0]
    check(skeleton.embedding, (rows, hidden))
    check(skeleton.head, (rows, hidden))
    for layer in skeleton.layers:
        if len(layer.qkv) == 1:
            check(layer.qkv[0], (q + 2 * kv, hidden))
        else:
            by_rows = sorted(layer.qkv, key=lambda node: graph.constants[node.inputs[1]].shape[0])
            for node, size in zip(by_rows, (kv, kv, q), strict=True):
                check(node, (size, hidden))
        for node in layer.units:
            check(node, (2 * ffn // len(layer.units), hidden))
        check(layer.out, (hidden, q))
        check(layer.down, (hidden, ffn))


def _layer(
    graph: Graph, skeleton: Skeleton, index: int, found: Matched, heads: Heads, biased: bool
) -> Iterator[Tensor]:
    """The tensors of a layer."""
    at, layer = f"model.layers.{index}", skeleton.layers[index]
    products = {node.outputs[0]: node for node in (*layer.qkv, *layer.units)}
    ffn = graph.constants[layer.down.inputs[1]].shape[1]
    sizes = [n * heads.width for n in (heads.queries, heads.keys, heads.keys)]
    yield _vector(f"{at}.input_layernorm.weight", found.attention_norm)
    yield _vector(f"{at}.post_attention_layernorm.weight", found.unit_norm)
    for (made, first), part, size in zip(found.qkv, "qkv", sizes, strict=True):
        node, name = products[made], f"{at}.self_attn.{part}_proj"
        yield _matrix(f"{name}.weight", graph.constants[node.inputs[1]], first, size)
        if biased:
            yield _vector(f"{name}.bias", _bias(graph, node)[first : first + size])
        else:
            _no_bias(graph, node)
    for gain, part in zip(found.gains or (), "qk", strict=False):
        yield _vector(f"{at}.self_attn.{part}_norm.weight", gain)
    for (made, first), part in zip(found.units, ("gate", "up"), strict=True):
        matrix = graph.constants[products[made].inputs[1]]
        yield _matrix(f"{at}.mlp.{part}_proj.weight", matrix, first, ffn)
    yield _matrix(f"{at}.self_attn.o_proj.weight", graph.constants[layer.out.inputs[1]])
    yield _matrix(f"{at}.mlp.down_proj.weight", graph.constants[layer.down.inputs[1]])


def _bias(graph: Graph, node: Node) -> Any:
    """What a product adds; zeros if it adds nothing."""
    if len(node.inputs) > 2 and node.inputs[2]:
        return array_of(graph.constants[node.inputs[2]])
    return np.zeros(graph.constants[node.inputs[1]].shape[0], np.float32)


def _no_bias(graph: Graph, *nodes: Node) -> None:
    """Raises UnlikeError for a product that adds something."""
    for node in nodes:
        if _bias(graph, node).any():
            raise UnlikeError(f"{node.label} adds a bias, which the family has not there")


def _equal(one: Constant, other: Constant) -> bool:
    """Whether two matrices hold the same."""
    return one.quant == other.quant and np.array_equal(_stored(one), _stored(other))


def _stored(constant: Constant) -> Any:
    return array_of(constant) if constant.array is None else constant.array


def _vector(name: str, values: Any) -> Tensor:
    data: Floats = np.array(values, np.float32)
    return Tensor(name, data.shape, Kind.F32, lambda first, last: data[first:last])


def _matrix(name: str, constant: Constant, start: int = 0, count: int | None = None) -> Tensor:
    """Rows of a constant as they are: floats, or blocks."""
    array = _stored(constant)
    shape = (constant.shape[0] if count is None else count, constant.shape[1])
    if constant.quant == "F32":
        kind = {"float16": Kind.F16, "bfloat16": Kind.BF16}.get(array.dtype.name, Kind.F32)

        def floats(first: int, last: int) -> Floats:
            rows: Floats = np.asarray(array[start + first : start + last], np.float32)
            return rows

        return Tensor(name, shape, kind, floats)
    kind = Kind[constant.quant]

    def copy(first: int, last: int) -> Bytes:
        rows: Bytes = np.ascontiguousarray(array[start + first : start + last])
        return rows

    def read(first: int, last: int) -> Floats:
        values: Floats = gguf.quants.dequantize(copy(first, last), kind)
        return values

    return Tensor(name, shape, kind, read, copy)
