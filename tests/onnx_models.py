"""The golden models as ONNX files, laid out as exports for the web are: attention over a cache in
one node, matrices in blocks of 4 or 8 bits, or plain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests import hugging_face

CONTRIB = "com.microsoft"
BLOCK = 32
KINDS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class Layout:
    """``bits`` 0 leaves matrices plain, ``zeros`` gives blocks zero points, ``packed`` makes one
    product of Q, K and V, and ``rotary`` says that attention turns them itself. With ``last`` there
    are no logits but a prompt's last, or, with ``keep``, as many of the last as an input says."""

    bits: int = 0
    zeros: bool = False
    packed: bool = False
    rotary: bool = True
    last: bool = False
    keep: bool = False
    dtype: str = "float32"
    window: int = 0


def write_onnx(folder: Path, name: str, layout: Layout, **fields: Any) -> Path:
    """A golden model with what lies beside it; config.json with other ``fields``."""
    hugging_face.write_folder(folder, name)
    (folder / "model.safetensors").unlink()
    hugging_face.write_json(folder / "config.json", hugging_face.config(name) | fields)
    (folder / "onnx").mkdir()
    path = folder / "onnx/model.onnx"
    weights = hugging_face.weights(name)
    onnx.save(Builder(weights, hugging_face.config(name) | fields, layout).model(), path)
    return path


def quantize(matrix: np.ndarray, bits: int, zeros: bool) -> list[np.ndarray]:
    """(N, K) to blocks (N, K / 32, bytes), scales (N, K / 32) and, perhaps, zero points. Scales
    have so few digits that they are halves, times a zero point too."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    middle = np.full(blocks.shape[:2], 1 << (bits - 1), np.uint8)
    if zeros:
        middle += (np.arange(middle.size).reshape(middle.shape) % 3).astype(np.uint8)
    mantissa, exponent = np.frexp(np.abs(blocks).max(-1) / ((1 << (bits - 1)) - 3))
    scales = np.ldexp(np.ceil(mantissa * 64) / 64, exponent).astype(np.float32)
    numbers = np.rint(blocks / scales[..., None]) + middle[..., None]
    numbers = np.clip(numbers, 0, (1 << bits) - 1).astype(np.uint8)
    if bits == 4:
        numbers = numbers[..., 0::2] | numbers[..., 1::2] << 4
        padded = np.pad(middle, ((0, 0), (0, middle.shape[1] % 2)))
        middle = padded[:, 0::2] | padded[:, 1::2] << 4
    return [numbers, scales, *([middle] if zeros else [])]


class Builder:
    """Makes one model's graph."""

    def __init__(self, weights: dict[str, Any], config: dict[str, Any], layout: Layout) -> None:
        self._weights, self._config, self._layout = weights, config, layout
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._type = helper.np_dtype_to_tensor_dtype(np.dtype(layout.dtype))
        self._heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._width = config.get("head_dim", config["hidden_size"] // self._heads[0])

    def model(self) -> onnx.ModelProto:
        """The whole of it."""
        config, w = self._config, self._weights
        self._tables()
        self._lengths()
        tied = config["tie_word_embeddings"]
        x = self._embedding("model.embed_tokens.weight", tied)
        added = ""
        for i in range(config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x, normal = self._norm(f"{at}.input_layernorm", x, added)
            added = self._attention(at, i, normal)
            x, normal = self._norm(f"{at}.post_attention_layernorm", x, added)
            gate, up = (
                self._product(f"{at}.mlp.{part}_proj", normal, w[f"{at}.mlp.{part}_proj.weight"])
                for part in ("gate", "up")
            )
            act = self._op("Mul", f"{at}.mlp.act", [gate, self._op("Sigmoid", f"{at}.sig", [gate])])
            unit = self._op("Mul", f"{at}.mlp.unit", [act, up])
            down = f"{at}.mlp.down_proj"
            added = self._product(down, unit, w[f"{down}.weight"])
        _, normal = self._norm("model.norm", x, added)
        if self._layout.last:
            taken = self._op("Gather", "last", [normal, self._constant("minus", np.int64(-1))])
            self._nodes[-1].attribute.append(helper.make_attribute("axis", 1))
            normal = self._op("Unsqueeze", "head.in", [taken, self._constant("axes", _ints(1))])
        if self._layout.keep:
            first = self._op("Neg", "first", ["num_logits_to_keep"])
            first = self._op("Reshape", "first.one", [first, self._constant("one.shape", _ints(1))])
            ends = [self._constant("end", _ints(1 << 62)), self._constant("tokens", _ints(1))]
            normal = self._op("Slice", "kept", [normal, first, *ends])
        matrix = w["model.embed_tokens.weight" if tied else "lm_head.weight"]
        self._product("lm_head", normal, matrix, "logits")
        return self._finished()

    def _op(self, op: str, name: str, inputs: list[str], domain: str = "", **more: Any) -> str:
        node = helper.make_node(op, inputs, [f"{name}.out"], name, domain=domain, **more)
        self._nodes.append(node)
        return f"{name}.out"

    def _constant(self, name: str, value: Any) -> str:
        array = np.asarray(value)
        array = array.astype(self._layout.dtype) if array.dtype == np.float32 else array
        self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def _tables(self) -> None:
        """Cosines and sines, by a formula of their own."""
        config, half = self._config, self._width // 2
        frequencies = [config["rope_theta"] ** (-i / half) for i in range(half)]
        if scaling := config.get("rope_scaling"):
            frequencies = [_llama3(f, scaling) for f in frequencies]
        angles = np.outer(np.arange(config["max_position_embeddings"]), frequencies)
        self._constant("cos_cache", np.cos(angles).astype(np.float32))
        self._constant("sin_cache", np.sin(angles).astype(np.float32))

    def _lengths(self) -> None:
        """What attention wants to know of the mask."""
        one = self._constant("one", _ints(1))
        total = self._op("ReduceSum", "sum", ["attention_mask", one], keepdims=0)
        before = self._op("Sub", "before", [total, one])
        self._op("Cast", "lengths", [before], to=TensorProto.INT32)
        shape = self._op("Shape", "shape", ["attention_mask"])
        count = self._op("Gather", "count", [shape, self._constant("second", np.int64(1))])
        self._op("Cast", "total", [count], to=TensorProto.INT32)

    def _embedding(self, name: str, tied: bool) -> str:
        if not self._layout.bits or not tied:
            matrix = self._constant(name, self._weights[name])
            return self._op("Gather", "embed", [matrix, "input_ids"])
        bits = self._layout.bits
        names = self._blocks("lm_head", self._weights[name])
        shape = self._constant("flat", _ints(len(self._weights[name]), -1))
        names[0] = self._op("Reshape", "flattened", [names[0], shape])
        inputs = [names[0], "input_ids", *names[1:]]
        more = {"bits": bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        return self._op("GatherBlockQuantized", "embed", inputs, CONTRIB, **more)

    def _norm(self, name: str, x: str, added: str) -> tuple[str, str]:
        """The sum and its norm."""
        gain = self._constant(f"{name}.weight", self._weights[f"{name}.weight"])
        eps = self._config["rms_norm_eps"]
        if not added:
            more = {"epsilon": eps, "axis": -1, "stash_type": 1}
            return x, self._op("SimplifiedLayerNormalization", name, [x, gain], **more)
        outputs = [f"{name}.out", "", "", f"{name}.sum"]
        op = "SkipSimplifiedLayerNormalization"
        node = helper.make_node(op, [x, added, gain], outputs, name, domain=CONTRIB, epsilon=eps)
        self._nodes.append(node)
        return outputs[3], outputs[0]

    def _blocks(self, name: str, matrix: np.ndarray) -> list[str]:
        arrays = quantize(matrix, self._layout.bits, self._layout.zeros)
        kinds = ("blocks", "scales", "zeros")
        return [
            self._constant(f"{name}.{kind}", array)
            for kind, array in zip(kinds, arrays, strict=False)
        ]

    def _product(self, name: str, x: str, matrix: Any, end: str = "", bias: Any = None) -> str:
        if self._layout.bits:
            n, k = matrix.shape
            more = {"N": n, "K": k, "bits": self._layout.bits, "block_size": BLOCK}
            inputs = [x, *self._blocks(name, matrix)]
            made = self._op("MatMulNBits", name, inputs, CONTRIB, **more)
        else:
            made = self._op("MatMul", name, [x, self._constant(f"{name}.weight", matrix.T)])
        if bias is not None:
            made = self._op("Add", f"{name}.add", [made, self._constant(f"{name}.bias", bias)])
        if end:
            self._nodes[-1].output[0] = end
        return end or made

    def _attention(self, at: str, index: int, x: str) -> str:
        w, names = self._weights, [f"{at}.self_attn.{part}_proj" for part in "qkv"]
        matrices = [w[f"{name}.weight"] for name in names]
        biases = [w.get(f"{name}.bias") for name in names]
        if self._layout.packed:
            bias = np.concatenate(biases) if biases[0] is not None else None
            name = f"{at}.self_attn.qkv_proj"
            parts = [self._product(name, x, np.concatenate(matrices), bias=bias), "", ""]
        else:
            triples = zip(names, matrices, biases, strict=True)
            parts = [self._product(name, x, matrix, bias=bias) for name, matrix, bias in triples]
        for i, part in enumerate("qk"):
            if gain := self._gain(f"{at}.self_attn.{part}_norm"):
                parts[i] = self._head_norm(f"{at}.self_attn.{part}_norm", parts[i], gain)
            if not self._layout.rotary:
                inputs = [parts[i], "position_ids", "cos_cache", "sin_cache"]
                more = {"num_heads": self._heads[i]}
                parts[i] = self._op("RotaryEmbedding", f"{at}.rotary.{part}", inputs, CONTRIB)
                self._nodes[-1].attribute.append(helper.make_attribute(*more.popitem()))
        past = [f"past_key_values.{index}.{kind}" for kind in ("key", "value")]
        tables = ["cos_cache", "sin_cache"] if self._layout.rotary else []
        node = helper.make_node(
            "GroupQueryAttention",
            [*parts, *past, "lengths.out", "total.out", *tables],
            [f"{at}.attn.out", *(f"present.{index}.{kind}" for kind in ("key", "value"))],
            f"{at}.attn",
            domain=CONTRIB,
            num_heads=self._heads[0],
            kv_num_heads=self._heads[1],
            scale=self._width**-0.5,
            do_rotary=int(self._layout.rotary),
            local_window_size=self._layout.window or -1,
            rotary_interleaved=0,
            softcap=0.0,
        )
        self._nodes.append(node)
        name = f"{at}.self_attn.o_proj"
        return self._product(name, f"{at}.attn.out", w[f"{name}.weight"])

    def _gain(self, name: str) -> str:
        found = self._weights.get(f"{name}.weight")
        return "" if found is None else self._constant(f"{name}.weight", found)

    def _head_norm(self, name: str, x: str, gain: str) -> str:
        """Each head by itself."""
        shapes = [
            self._constant(f"{name}.{kind}", _ints(*sizes))
            for kind, sizes in (("heads", (0, 0, -1, self._width)), ("flat", (0, 0, -1)))
        ]
        split = self._op("Reshape", f"{name}.split", [x, shapes[0]])
        more = {"epsilon": self._config["rms_norm_eps"], "axis": -1}
        normal = self._op("SimplifiedLayerNormalization", name, [split, gain], **more)
        return self._op("Reshape", f"{name}.join", [normal, shapes[1]])

    def _finished(self) -> onnx.ModelProto:
        config, kv = self._config, ["batch_size", self._heads[1]]
        ids = [("input_ids", "sequence_length"), ("attention_mask", "total_sequence_length")]
        ids += [] if self._layout.rotary else [("position_ids", "sequence_length")]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", size])
            for name, size in ids
        ]
        if self._layout.keep:
            name = "num_logits_to_keep"
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))
        outputs = [helper.make_empty_tensor_value_info("logits")]
        for i in range(config["num_hidden_layers"]):
            for kind in ("key", "value"):
                shape = [*kv, "past_sequence_length", self._width]
                name = f"past_key_values.{i}.{kind}"
                inputs.append(helper.make_tensor_value_info(name, self._type, shape))
                outputs.append(helper.make_empty_tensor_value_info(f"present.{i}.{kind}"))
        constants = list(self._constants.values())
        graph = helper.make_graph(self._nodes, "main_graph", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _llama3(frequency: float, scaling: dict[str, float]) -> float:
    """Llama 3.1's scaling, as transformers writes it."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    length = 2 * np.pi / frequency
    if length < original / high:
        return frequency
    if length > original / low:
        return frequency / factor
    smooth = (original / length - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


class Oracle:
    """A model with a cache, or without, in onnxruntime; ``width`` is that of heads, if the file
    gives it a name only."""

    def __init__(self, path: Path, width: int = 0) -> None:
        self._width = width
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def logits(self, ids: list[int]) -> np.ndarray:
        """(vocab,) after the last of some tokens."""
        given = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "num_logits_to_keep": np.array(1),
        }
        feeds = {
            entry.name: given[entry.name]
            if entry.name in given
            else np.zeros((1, entry.shape[1], 0, self._width or entry.shape[3]), KINDS[entry.type])
            for entry in self._session.get_inputs()
        }
        found: np.ndarray = np.asarray(self._session.run(["logits"], feeds)[0])
        return found[0, -1]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The most likely next tokens."""
        found = list(ids)
        for _ in range(count):
            found.append(int(self.logits(found).argmax()))
        return found[len(ids) :]
