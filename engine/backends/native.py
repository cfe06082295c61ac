"""SIMD kernels for the CPU device: cpu.c, compiled to WebAssembly and loaded into Pyodide, or
compiled for the machine that builds and loaded into its Python.

The library shares Python's memory, so that kernels take the addresses of NumPy arrays and nothing
is copied. A call costs about a microsecond beside the kernel's own time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from engine.ops.gate import ACTS
from engine.ops.kv_layout import KV_BLOCK
from engine.plan import Call, Weight

LIBRARY = Path(__file__).with_name("cpu.wasm")  # only in the wheel
# As enum Quant in cpu_quants.h.
QUANTS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
)
QUERIES = 64  # as in cpu_floats.h
# Multiplications of a run, so that messages get in between two: 20 ms on a slow processor. A few
# tokens share the reading of a matrix, whatever its size.
WORK, FEW_TOKENS = 1 << 25, 16
Run = Callable[[], None]


def open_native() -> Native | None:
    """The wheel's kernels, or None where they cannot run: outside of WebAssembly, or without its
    SIMD."""
    if sys.platform != "emscripten":
        return None
    try:
        return Native(LIBRARY)
    except OSError:
        return None


class Native:
    """Faster implementations of some ops, with matrices in the file's own blocks or f32; ``name``
    says what ``library`` was compiled for."""

    name = "WebAssembly"

    def __init__(self, library: Path, name: str = name) -> None:
        import ctypes

        import numpy as np

        self.name = name
        self._library = ctypes.CDLL(str(library))
        self._float = ctypes.c_float
        self._library.prepare()
        self._scratch = np.empty(0, np.uint8)
        self._ops: dict[str, Callable[[Call, Mapping[str, Any]], Sequence[Run] | None]] = {
            "attend": self._attend,
            "attention": self._attention,
            "embed": self._embed,
            "gate": self._gate,
            "linear": self._linear,
            "normalization": self._normalization,
            "rmsnorm": self._rmsnorm,
            "rope_store": self._rope_store,
        }

    def takes_blocks(self, weight: Weight) -> bool:
        """Whether kernels take this weight as the file's blocks, (bytes,) u8, and not as f32."""
        return weight.quant in QUANTS and len(weight.shape) == 2

    def bind(self, call: Call, arrays: Mapping[str, Any]) -> Sequence[Run] | None:
        """What does, one after the other, the same as ``call.reference(arrays)``; None if there is
        no kernel for it. A long call is several runs."""
        return self._ops[call.op](call, arrays) if call.op in self._ops else None

    def _embed(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run] | None:
        w = call.args["w"]
        if not (isinstance(w, Weight) and self.takes_blocks(w)):
            return None
        arrays = [a[name] for name in ("step", "tokens", "w", "y")]
        rows, k = w.shape
        overrides = _overrides(call)
        kind, factor = QUANTS.index(w.quant), self._float(overrides["SCALE"])
        own = (kind, k, rows, int(overrides["FIRST"]), factor)
        return [Bound(self._library.embed, *arrays, *own)]

    def _linear(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run] | None:
        w, y, library = call.args["w"], call.args["y"], self._library
        (n, k), (capacity, width) = w.shape, y.shape
        if not isinstance(w, Weight) or not capacity:
            return None
        in_blocks = self.takes_blocks(w)
        kernel = library.linear if in_blocks else library.linear_floats
        scratch = library.linear_scratch if in_blocks else library.linear_floats_scratch
        parts = _parts(capacity, n * k, FEW_TOKENS)
        arguments = (
            *(a[name] for name in ("step", "x", "w", "y")),
            self._scratch_of(scratch(parts[0][1], n, k)),
            *(n, k, _consts(call)["PARTS"], _act(call)),
            *(width, int(_overrides(call)["FIRST"])),
            a.get("norm"),
            self._float(_overrides(call).get("EPS", 0.0)),
            a.get("bias"),
            a.get("residual"),
            *([QUANTS.index(w.quant)] if in_blocks else []),
        )
        return [Bound(kernel, *part, *arguments) for part in parts]

    def _normalization(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run] | None:
        numbers, (rows, width) = _overrides(call), call.args["x"].shape
        if width % 4:
            return None
        arrays = (a["x"], a["gain"], a.get("bias"), a["y"])
        own = (width, self._float(numbers["EPS"]), int(numbers["CENTRED"]))
        kernel = self._library.normalize_rows
        return [Bound(kernel, *part, *arrays, *own) for part in _parts(rows, 8 * width)]

    def _attend(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run] | None:
        import numpy as np

        numbers, consts = _overrides(call), _consts(call)
        m, n, heads = (int(numbers[name]) for name in ("M", "N", "HEADS"))
        width, values = consts["WIDTH"], consts["VALUES"]
        side_by_side = all(numbers[f"{name}3"] == 1 for name in "QKVY")
        if not n or width % 4 or values % 4 or not side_by_side:
            return None
        places = [
            [int(numbers.get(f"{name}{i}", 0)) for i in ("0", "1", "2", "3", "_AT")]
            for name in ("Q", "K", "V", "Y", "MASK")
        ]
        arguments = (
            *(a["q"], a["k"], a["v"], a.get("mask"), a["y"]),
            self._scratch_of(self._library.attend_scratch(n, width)),
            np.array(places, np.int32),
            np.array([m, n, width, values], np.int32),
            *(heads, self._float(numbers["SCALE"]), int(numbers["GUARDED"])),
        )
        blocks = call.grid.y * ceil(m / QUERIES)  # y has the heads of all batches
        parts = _parts(blocks, min(m, QUERIES) * n * (width + values))
        return [Bound(self._library.attend_views, *part, *arguments) for part in parts]

    def _rope_store(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run]:
        numbers, (bytes, heads, dim) = _overrides(call), _pools(call)
        names = ("step", "block_table", "rope", "qkv", "q", "k_pool", "v_pool")
        sizes = (bytes, int(numbers["Q_HEADS"]), heads, dim)
        turned = (int(numbers["ROTARY"]), int(numbers["HALVES"]))
        arrays = (*(a[name] for name in names), self._scratch_of(4 * dim))
        return [Bound(self._library.rope_store, *arrays, *sizes, *turned)]

    def _attention(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run]:
        numbers, (bytes, heads, dim) = _overrides(call), _pools(call)
        context = call.args["block_table"].shape[0] * KV_BLOCK
        arguments = (
            *(a[name] for name in ("step", "block_table", "q", "k_pool", "v_pool", "y")),
            self._scratch_of(self._library.attention_scratch(context)),
            *(bytes, int(numbers["Q_HEADS"]), heads, dim),
            self._float(numbers["SCALE"]),
            int(numbers["WINDOW"]),
        )
        return [Bound(self._library.attention, *arguments)]

    def _gate(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run]:
        arrays = [a[name] for name in ("step", "x", "y")]
        return [Bound(self._library.gate_rows, *arrays, call.args["y"].shape[1], _act(call))]

    def _rmsnorm(self, call: Call, a: Mapping[str, Any]) -> Sequence[Run]:
        arrays = (a["step"], a["x"], a["norm"], a.get("residual"), a["y"])
        eps = self._float(_overrides(call)["EPS"])
        return [Bound(self._library.rmsnorm, *arrays, call.args["x"].shape[1], eps)]

    def _scratch_of(self, nbytes: int) -> Any:
        """Memory that a kernel may use while it runs; most calls share it."""
        import numpy as np

        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch


class Bound:
    """A kernel with its arguments: arrays go by address, None as a null pointer. The arrays are
    kept alive, and must be contiguous."""

    def __init__(self, kernel: Callable[..., object], *arguments: Any) -> None:
        self._kernel = kernel
        self._arrays = [a for a in arguments if hasattr(a, "__array_interface__")]
        self._arguments = [_plain(a) for a in arguments]

    def __call__(self) -> None:
        self._kernel(*self._arguments)


def _plain(argument: Any) -> Any:
    """An argument as a kernel takes it."""
    from ctypes import c_void_p

    if argument is None:
        return c_void_p()
    if not hasattr(argument, "__array_interface__"):
        return argument
    assert argument.flags.c_contiguous
    return c_void_p(argument.__array_interface__["data"][0])


def _parts(rows: int, work: int, unit: int = 1) -> list[tuple[int, int]]:
    """The rows of each run, from and to, where a row takes ``work`` multiplications; runs begin at
    multiples of ``unit``."""
    each = max(WORK // work // unit, 1) * unit
    return [(start, min(start + each, rows)) for start in range(0, rows, each)]


def _act(call: Call) -> int:
    """enum Act in cpu.c, as the shader is joined with the piece for it."""
    assert call.shader is not None
    pieces = [pieces[-1] for pieces in ACTS.values()]
    return next((i for i, piece in enumerate(pieces, 1) if piece in call.shader.lib), 0)


def _pools(call: Call) -> tuple[int, int, int]:
    """Whether the KV pools hold bytes, their heads, and elements of a head."""
    sizes = _consts(call)
    return int(call.args["k_pool"].dtype == "u32"), sizes["KV_HEADS"], sizes["HEAD_DIM"]


def _consts(call: Call) -> Mapping[str, int]:
    """As ``_overrides``, those that shape the shader."""
    assert call.shader is not None
    return call.shader.consts


def _overrides(call: Call) -> Mapping[str, int | float]:
    """The numbers that an op gave to its shader serve here too."""
    assert call.shader is not None
    return call.shader.overrides
