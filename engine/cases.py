"""Small cases for kernels, one for each way in which a model may use one: whatever is put into them
is made here from numbers that are the same everywhere, what has to come out was computed by the
NumPy references (tests/golden/make_kernels.py) and lies in kernels.json."""

from __future__ import annotations

import json
import random
import struct
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from engine import ops
from engine.files import golden
from engine.ops.attention import Reach
from engine.ops.gate import Act
from engine.ops.kv_layout import KV_BLOCK, KVLayout
from engine.ops.kv_values import Precision, quant_words
from engine.ops.norm import Norm
from engine.ops.spans import Spans, tensor_of
from engine.ops.state import STEP, StepRecord
from engine.plan import Call, Plan, PlanBuilder, Tensor, Traits, Weight
from engine.weights.gguf import GGUF, TensorInfo
from engine.weights.quants import QUANTS, make_weight, quant

MANY = 3  # tokens of a prefill step
K, N = 256, 24  # columns, a superblock of them, and rows of a matrix
POSITION = 37  # of the first token in attention: in the third block
CONTEXT = 64
WINDOW = 20
EPS = 1e-5
SAMPLE = 13  # of wide rows, every so manieth value is compared
ALIGN = 32  # of a tensor in a file
# Where the halves of a file block begin.
HALVES: dict[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


# Scales over these: blocks of a superblock have scales of their own beside. Those of the last four
# are subnormal halves, as nearly all are in files of Q6_K: a GPU must not take them for zeros.
_SMALL = {"Q2_K": 64, "Q3_K": 128} | dict.fromkeys(("Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), 16384)


@dataclass(frozen=True)
class Product:
    """A linear layer: how its weight is quantized, what it adds, or the gate's function; whether it
    ``joins`` the spans of an attention."""

    quant: str
    norm: bool = False
    bias: bool = False
    residual: bool = False
    act: Act | None = None
    joins: bool = False

    def build(self, b: PlanBuilder) -> Tensor:
        """Its calls; what comes out."""
        x = Attend(K // 4, 2).spans(b) if self.joins else Tensor("x", (b.tokens, K), "f32", "state")
        norm = Norm(make_weight("gain", (), "F32", {"gain": K}), EPS) if self.norm else None
        w = make_weight("w", (K,), self.quant, {"w": 2 * N if self.act else N})
        if self.act:
            return ops.gated_linear(b, tensor_of(b, x), w, norm=norm, act=self.act)
        bias = make_weight("bias", (), "F32", {"bias": N}) if self.bias else None
        residual = Tensor("residual", (b.tokens, N), "f32", "state") if self.residual else None
        return ops.linear(b, x, w, norm=norm, bias=bias, residual=residual)


@dataclass(frozen=True)
class Lookup:
    """An embedding."""

    quant: str

    def build(self, b: PlanBuilder) -> Tensor:
        """Its call; what comes out."""
        tokens = Tensor("tokens", (b.tokens,), "u32", "state")
        return ops.embed(b, tokens, make_weight("w", (K,), self.quant, {"w": N}), 1.5)


@dataclass(frozen=True)
class Attend:
    """Attention of ``group`` query heads to each of two heads, whose keys and values are halves or
    ``bytes``."""

    head_dim: int
    group: int
    window: bool = False
    bytes: bool = False

    def spans(self, b: PlanBuilder) -> Tensor | Spans:
        """Its first call or calls; what comes out."""
        heads, dim = 2 * self.group, self.head_dim
        precision: Precision = "q8" if self.bytes else "f16"
        blocks = CONTEXT // KV_BLOCK
        kv = KVLayout(blocks, CONTEXT, heads, 2, dim, dim**-0.5, precision=precision)
        qkv = Tensor("qkv", (b.tokens, (heads + 4) * dim), "f32", "state")
        return ops.attention(b, qkv, kv, 0, Reach(WINDOW if self.window else 0))

    def build(self, b: PlanBuilder) -> Tensor:
        """Its calls; what comes out."""
        return tensor_of(b, self.spans(b))


Spec = Product | Lookup | Attend


@dataclass(frozen=True)
class Case:
    """A use of kernels, in steps of one token or of several."""

    spec: Spec
    many: bool

    @property
    def name(self) -> str:
        """Its key among what was computed."""
        fields = {k: v for k, v in vars(self.spec).items() if v}
        about = " ".join(f"{k}={v}" for k, v in fields.items())
        return f"{type(self.spec).__name__} {about} tokens={self.tokens}"

    @property
    def tokens(self) -> int:
        """Of the step."""
        return MANY if self.many else 1

    @property
    def attends(self) -> bool:
        """Whether attention is a part of it."""
        return isinstance(self.spec, Attend) or (isinstance(self.spec, Product) and self.spec.joins)

    @property
    def position(self) -> int:
        """Of the first token."""
        return POSITION if self.attends else 0

    def plan(self, traits: Traits) -> tuple[Plan, Tensor]:
        """Its plan on a device, and what comes out. Everything has a buffer of its own."""
        b = PlanBuilder(self.name, traits, self.tokens)
        y = self.spec.build(b)
        calls = tuple(apart(call) for call in b.calls)
        return Plan(self.name, calls, {}, (), self.tokens), replace(y, role="state")

    @property
    def stride(self) -> int:
        """Every so manieth value that comes out is compared."""
        return 1 if isinstance(self.spec, Product) else SAMPLE


def apart(call: Call, rename: Callable[[str], str] = str) -> Call:
    """The call with activations that keep buffers of their own, and tensors of other names."""
    return replace(call, args={name: _apart(t, rename) for name, t in call.args.items()})


def _apart(tensor: Tensor, rename: Callable[[str], str]) -> Tensor:
    name = rename(tensor.name)
    if isinstance(tensor, Weight):
        return replace(tensor, name=name, sources=tuple(map(rename, tensor.sources)))
    return replace(tensor, name=name, role="state" if tensor.role == "activation" else tensor.role)


def content(tensor: Tensor, case: Case) -> bytes:
    """What a state or KV tensor holds, by its own name."""
    if tensor.name == STEP.name:
        return StepRecord(case.position, case.tokens).pack()
    if tensor.name == "block_table":
        return array("I", range(tensor.shape[0] - 1, -1, -1)).tobytes()
    if tensor.name == "tokens":
        return array("I", [(17 * i + 5) % N for i in range(tensor.shape[0])]).tobytes()
    if tensor.role == "kv" and isinstance(case.spec, Attend) and case.spec.bytes:
        return _bytes_with_scales(tensor, KV_BLOCK * quant_words(case.spec.head_dim))
    if tensor.dtype == "f16":
        return struct.pack(f"<{tensor.nbytes // 2}e", *_numbers(tensor.name, tensor.nbytes // 2))
    return array("f", _numbers(tensor.name, tensor.nbytes // 4)).tobytes()


def _bytes_with_scales(tensor: Tensor, quants: int) -> bytes:
    """A pool of bytes: for each head of a block so many words of bytes, then scales, two a word."""
    blocks, heads, words = tensor.shape
    rng = random.Random(f"{tensor.name} {words}")
    count = 2 * (words - quants)
    rows = []
    for _ in range(blocks * heads):
        scales = (rng.uniform(0.5, 1) / 128 for _ in range(count))
        rows += [rng.randbytes(4 * quants), struct.pack(f"<{count}e", *scales)]
    return b"".join(rows)


def file_of(weights: Iterable[Weight]) -> tuple[GGUF, bytes]:
    """Weights, each of one source, as they lie in a file."""
    data, infos = b"", {}
    for weight in weights:
        (source,) = weight.sources
        raw = blocks(weight)
        data += b"\0" * (-len(data) % ALIGN)
        infos[source] = TensorInfo(source, weight.shape, weight.quant, len(data), len(raw))
        data += raw
    return GGUF(3, {}, infos, 0, len(data)), data


def blocks(weight: Weight) -> bytes:
    """A weight's blocks in a file: random, but for their scales, which are as models have them."""
    count = weight.shape[0] * (weight.shape[1] if len(weight.shape) > 1 else 1)
    kind = quant(weight.quant)
    if kind.name not in HALVES:
        return _plain(kind.name, _numbers(weight.sources[0].rpartition(".")[2], count))
    count //= kind.block_size
    rng = random.Random(f"{kind.name} {count}")
    data = bytearray(rng.randbytes(count * kind.block_bytes))
    small = _SMALL.get(kind.name, 64)
    for i in range(count):
        for start in HALVES[kind.name]:
            struct.pack_into("<e", data, i * kind.block_bytes + start, rng.uniform(0.5, 1) / small)
    return bytes(data)


def _plain(kind: str, values: list[float]) -> bytes:
    if kind == "F32":
        return array("f", values).tobytes()
    if kind == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    return b"".join(struct.pack("<f", value)[2:] for value in values)  # BF16


def _numbers(name: str, count: int) -> list[float]:
    rng = random.Random(f"{name} {count}")
    return [rng.uniform(-1, 1) for _ in range(count)]


@cache
def expected() -> dict[str, array[float]]:
    """What has to come out, by the names of cases."""
    texts = json.loads((golden() / "kernels.json").read_text(encoding="utf-8"))
    return {name: array("f", b64decode(text)) for name, text in texts.items()}


HEAD_DIMS = (16, 24, 64, 80, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8)
BYTES = {64: (1, 3, 4, 7), 96: (1,), 128: (2, 3, 4, 6, 8), 256: (4,)}  # of 8 bits: what models have


def all_cases() -> list[Case]:
    """Every case that there is."""
    specs: list[Spec] = []
    for kind in QUANTS:
        specs += [
            Product(kind),
            Product(kind, norm=True),
            Product(kind, norm=True, bias=True),
            Product(kind, residual=True),
            Product(kind, norm=True, act="silu"),
            Product(kind, norm=True, act="gelu"),
            Lookup(kind),
        ]
    specs += [Attend(dim, group) for dim in HEAD_DIMS for group in GROUPS]
    specs += [Attend(dim, group, True) for dim in (16, 24, 96, 256) for group in (1, 2, 4)]
    specs += [Attend(dim, group, bytes=True) for dim in BYTES for group in BYTES[dim]]
    specs += [Attend(256, 4, True, True)]
    one = [
        Case(Product(kind, residual=added, joins=True), False)
        for kind in QUANTS
        for added in (False, True)
    ]
    return [Case(spec, many) for spec in specs for many in (False, True)] + one
