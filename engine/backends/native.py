"""SIMD kernels for the CPU device: cpu.c, compiled to WebAssembly and loaded into Pyodide, or
compiled for the machine that builds and loaded into its Python.

The library shares Python's memory, so that kernels take the addresses of NumPy arrays and nothing
is copied. A call costs about a microsecond beside the kernel's own time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.ops.kv_layout import KV_BLOCK
from engine.plan import Call, Weight

LIBRARY = Path(__file__).with_name("cpu.wasm")  # only in the wheel
# As enum Quant in cpu_quants.h.
QUANTS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
)
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
    """Faster implementations of some ops for matrices in the file's own blocks; ``name`` says what
    ``library`` was compiled for."""

    name = "WebAssembly"

    def __init__(self, library: Path, name: str = name) -> None:
        import ctypes

        import numpy as np

        self.name = name
        self._library = ctypes.CDLL(str(library))
        self._float = ctypes.c_float
        self._library.prepare()
        self._scratch = np.empty(0, np.uint8)
        self._ops: dict[str, Callable[[Call, Mapping[str, Any]], Run | None]] = {
            "attention": self._attention,
            "embed": self._embed,
            "gate": self._gate,
            "linear": self._linear,
            "rmsnorm": self._rmsnorm,
            "rope_store": self._rope_store,
        }

    def takes_blocks(self, weight: Weight) -> bool:
        """Whether kernels take this weight as the file's blocks, (bytes,) u8, and not as f32."""
        return weight.quant in QUANTS and len(weight.shape) == 2

    def bind(self, call: Call, arrays: Mapping[str, Any]) -> Run | None:
        """What does the same as ``call.reference(arrays)``; None if there is no kernel for it."""
        return self._ops[call.op](call, arrays) if call.op in self._ops else None

    def _embed(self, call: Call, a: Mapping[str, Any]) -> Run | None:
        w = call.args["w"]
        if not (isinstance(w, Weight) and self.takes_blocks(w)):
            return None
        arrays = [a[name] for name in ("step", "tokens", "w", "y")]
        rows, k = w.shape
        overrides = _overrides(call)
        kind, factor = QUANTS.index(w.quant), self._float(overrides["SCALE"])
        own = (kind, k, rows, int(overrides["FIRST"]), factor)
        return Bound(self._library.embed, *arrays, *own)

    def _linear(self, call: Call, a: Mapping[str, Any]) -> Run | None:
        w, y = call.args["w"], call.args["y"]
        if not (isinstance(w, Weight) and self.takes_blocks(w)):
            return None
        assert call.shader is not None
        (n, k), (capacity, width) = w.shape, y.shape
        return Bound(
            self._library.linear,
            *(a[name] for name in ("step", "x", "w", "y")),
            self._scratch_of(self._library.linear_scratch(capacity, n, k)),
            *(QUANTS.index(w.quant), capacity, n, k, call.shader.consts["PARTS"]),
            _is_gelu(call),
            *(width, int(_overrides(call)["FIRST"])),
            a.get("norm"),
            self._float(_overrides(call).get("EPS", 0.0)),
            a.get("bias"),
            a.get("residual"),
        )

    def _rope_store(self, call: Call, a: Mapping[str, Any]) -> Run:
        numbers, (bytes, heads, dim) = _overrides(call), _pools(call)
        names = ("step", "block_table", "rope", "qkv", "q", "k_pool", "v_pool")
        sizes = (bytes, int(numbers["Q_HEADS"]), heads, dim)
        turned = (int(numbers["ROTARY"]), int(numbers["HALVES"]))
        arrays = (*(a[name] for name in names), self._scratch_of(4 * dim))
        return Bound(self._library.rope_store, *arrays, *sizes, *turned)

    def _attention(self, call: Call, a: Mapping[str, Any]) -> Run:
        numbers, (bytes, heads, dim) = _overrides(call), _pools(call)
        context = call.args["block_table"].shape[0] * KV_BLOCK
        return Bound(
            self._library.attention,
            *(a[name] for name in ("step", "block_table", "q", "k_pool", "v_pool", "y")),
            self._scratch_of(self._library.attention_scratch(context)),
            *(bytes, int(numbers["Q_HEADS"]), heads, dim),
            self._float(numbers["SCALE"]),
            int(numbers["WINDOW"]),
        )

    def _gate(self, call: Call, a: Mapping[str, Any]) -> Run:
        arrays = [a[name] for name in ("step", "x", "y")]
        return Bound(self._library.gate_rows, *arrays, call.args["y"].shape[1], _is_gelu(call))

    def _rmsnorm(self, call: Call, a: Mapping[str, Any]) -> Run:
        arrays = (a["step"], a["x"], a["norm"], a.get("residual"), a["y"])
        eps = self._float(_overrides(call)["EPS"])
        return Bound(self._library.rmsnorm, *arrays, call.args["x"].shape[1], eps)

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


def _is_gelu(call: Call) -> int:
    """Whether a gate is GELU's, as the shader is joined with the piece for it."""
    assert call.shader is not None
    return int("act_gelu" in call.shader.lib)


def _pools(call: Call) -> tuple[int, int, int]:
    """Whether the KV pools hold bytes, their heads, and elements of a head."""
    assert call.shader is not None
    sizes = call.shader.consts
    return int(call.args["k_pool"].dtype == "u32"), sizes["KV_HEADS"], sizes["HEAD_DIM"]


def _overrides(call: Call) -> Mapping[str, int | float]:
    """The numbers that an op gave to its shader serve here too."""
    assert call.shader is not None
    return call.shader.overrides
