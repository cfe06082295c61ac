"""A language model in an ONNX file, as the converter has models: the graph is recognized, and its
matrices get the names that Hugging Face gives them.

What is recognized runs as the GGUF file of the same model does; everything else stays a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from engine.host.convert.hyperparameters import Config
from engine.host.convert.model import Bytes, Floats, Model, Tensor
from engine.host.convert.onnx_graph.expected import Expected, expected_of, with_whole_context
from engine.host.convert.onnx_graph.matching import Matched, Matcher, TablesError, array_of
from engine.host.convert.onnx_graph.skeleton import Layer, Skeleton, UnlikeError, skeleton_of
from engine.host.errors import HostError

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
        config, found, tied = _matched(_prepared(graph), config)
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


def _matched(graph: Graph, config: Config) -> tuple[Config, dict[str, Tensor], bool]:
    """What `_tensors` finds, and the config.json that it agrees with."""
    try:
        return config, *_tensors(graph, config)
    except TablesError as error:
        wrong = error
    if whole := with_whole_context(config):
        with suppress(TablesError):
            found = _tensors(graph, whole)
            print(
                f"note: its rotary tables take the whole context, not what {config.path} says, "
                "for the original one, as some builders of ONNX files do: they stay as they are",
                flush=True,
            )
            return whole, *found
    raise wrong


def _tensors(graph: Graph, config: Config) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a graph, by the names of Hugging Face, and whether the head has the
    embedding's matrix."""
    skeleton = skeleton_of(graph)
    _check_sizes(graph, skeleton, config)
    context = config.count("max_position_embeddings")
    if context < SHORTEST:
        raise UnlikeError(f"{config.path}: a context of {context} tokens is too short")
    embedding = graph.constants[skeleton.embedding.inputs[0]]
    head = graph.constants[skeleton.head.inputs[1]]
    expected = expected_of(config, embedding.shape[0])
    matcher = Matcher(graph, skeleton, expected)
    logits = LOGITS if LOGITS in graph.outputs else graph.outputs[0]
    matcher.end(skeleton.head, logits)
    _no_bias(graph, skeleton.head)
    added = family_of(config).gain
    found = [_matrix("model.embed_tokens.weight", embedding)]
    for i, layer in enumerate(skeleton.layers):
        _no_bias(graph, layer.out, *layer.units, layer.down)
        matched = matcher.layer(i)
        found += _norms(i, matched, added)
        found += _matrices(graph, layer, i, matched, expected)
    found.append(_vector("model.norm.weight", matcher.norm(skeleton.head.inputs[0]) - added))
    tied = _equal(embedding, head)
    found += [] if tied else [_matrix("lm_head.weight", head)]
    return {tensor.name: tensor for tensor in found}, tied


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


def _norms(index: int, found: Matched, added: float) -> Iterator[Tensor]:
    """The weights of the norms of a layer, which are ``added`` less than the gains."""
    gains = {
        "input_layernorm": found.attention_norm,
        "post_attention_layernorm": found.attended_norm,
        "pre_feedforward_layernorm": found.unit_norm,
        "post_feedforward_layernorm": found.down_norm,
    }
    if found.attended_norm is None:
        gains["post_attention_layernorm"] = gains.pop("pre_feedforward_layernorm")
    parts = zip("qk", found.gains or (), strict=False)
    gains |= {f"self_attn.{part}_norm": gain for part, gain in parts}
    for name, gain in gains.items():
        if gain is not None:
            yield _vector(f"model.layers.{index}.{name}.weight", gain - np.float32(added))


def _matrices(
    graph: Graph, layer: Layer, index: int, found: Matched, expected: Expected
) -> Iterator[Tensor]:
    """The matrices of a layer, and biases."""
    at, model = f"model.layers.{index}", expected.model
    products = {node.outputs[0]: node for node in (*layer.qkv, *layer.units)}
    q, kv = model.q_heads * model.head_dim, model.kv_heads * model.head_dim
    for name, places, parts in (
        ("self_attn.qkv_proj", found.qkv, {"q": q, "k": kv, "v": kv}),
        ("mlp.gate_up_proj", found.units, {"gate": model.ffn, "up": model.ffn}),
    ):
        own = []
        for (made, first), (part, size) in zip(places, parts.items(), strict=True):
            node, single = products[made], f"{at}.{name.partition('.')[0]}.{part}_proj"
            matrix = graph.constants[node.inputs[1]]
            own.append(_matrix(f"{single}.weight", matrix, first, size))
            if part in "qkv" and expected.kind.qkv_bias:
                yield _vector(f"{single}.bias", _bias(graph, node)[first : first + size])
            else:
                _no_bias(graph, node)
        yield from [_stacked(f"{at}.{name}.weight", own)] if expected.kind.fused else own
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


def _stacked(name: str, parts: Sequence[Tensor]) -> Tensor:
    """Matrices below each other. Raises UnlikeError if they are quantized differently."""
    kinds = sorted({part.stored.name for part in parts})
    if len(kinds) > 1:
        raise UnlikeError(f"the parts of {name} are {' and '.join(kinds)}, which one cannot be")
    firsts = np.cumsum([0, *(part.shape[0] for part in parts)]).tolist()

    def of(rows: Sequence[Callable[[int, int], Any]]) -> Callable[[int, int], Any]:
        def read(first: int, last: int) -> Any:
            return np.concatenate(
                [
                    own(max(first - start, 0), min(last, end) - start)
                    for own, start, end in zip(rows, firsts, firsts[1:], strict=False)
                    if first < end and start < last
                ]
            )

        return read

    copies = [part.copy for part in parts if part.copy]
    copy = of(copies) if len(copies) == len(parts) else None
    shape = (firsts[-1], *parts[0].shape[1:])
    return Tensor(name, shape, parts[0].stored, of([part.read for part in parts]), copy)
