"""Runs recorded plans in real Chromium and, beside them, their NumPy references."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gguf as gguf_oracle
import numpy as np

from engine.backends.base import persistent_tensors, pools_of, weights_of
from engine.backends.wire import plans_to_wire, shader_to_wire, slots_to_wire, tensors_to_wire
from engine.ops.state import STEP, StepRecord
from engine.plan import Plan, Tensor, Weight
from engine.weights.gguf import GGUF, TensorInfo
from engine.weights.loading import repack_kernels, shard_jobs
from engine.weights.quants import QUANTS
from tests.kernels.cases import random_blocks

ALIGN = 32
_DTYPES = {"u32": np.uint32, "i32": np.int32, "f16": np.float16}


@dataclass
class Case:
    """A plan with its inputs. ``weights`` maps GGUF tensor names to f32 arrays, which are
    quantized here, unless ``blocks`` has their bytes; ``arrays`` maps tensor names to their
    contents. With ``scales`` the weights are random blocks with these instead."""

    plan: Plan
    arrays: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    step: StepRecord
    shard_size: int = 4096
    scales: Sequence[float] = ()
    blocks: Mapping[str, bytes] = field(default_factory=dict)

    def quantized(self) -> dict[str, tuple[str, bytes]]:
        """Quantization and file bytes of every GGUF tensor."""
        kinds = {s: w.quant for w in weights_of([self.plan]) for s in w.sources}
        return {
            name: (kinds[name], self.blocks.get(name) or self._blocks(values, kinds[name]))
            for name, values in self.weights.items()
        }

    def _blocks(self, values: np.ndarray, kind: str) -> bytes:
        if not self.scales:
            return quantize(values, kind)
        return random_blocks(kind, values.size // QUANTS[kind].block_size, np.array(self.scales))

    def reference(self) -> dict[str, np.ndarray]:
        """All tensors after running the references, by name."""
        held: dict[str, Any] = {}
        files = {
            name: oracle(kind, raw).reshape(self.weights[name].shape)
            for name, (kind, raw) in self.quantized().items()
        }
        for call in self.plan.calls:
            for tensor in call.args.values():
                if tensor.name not in held:
                    held[tensor.name] = self._initial(tensor, files)
            call.reference({arg: _seen(held[t.name], t) for arg, t in call.args.items()})
        return held

    def _initial(self, tensor: Tensor, files: Mapping[str, np.ndarray]) -> np.ndarray:
        if isinstance(tensor, Weight):
            return _stacked(tensor, files)
        if tensor == STEP:
            return np.frombuffer(self.step.pack(), np.uint32).copy()
        if tensor.name in self.arrays:
            return self.arrays[tensor.name].copy()
        return np.zeros(tensor.shape, _DTYPES.get(tensor.dtype, np.float32))


def _seen(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """An array in the shape that a call sees it in, in the same memory; pools have as many blocks
    as there are."""
    if tensor.role == "kv" or array.shape == tensor.shape:
        return array
    return array.reshape(-1)[: int(np.prod(tensor.shape))].reshape(tensor.shape)


def _stacked(weight: Weight, files: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rows of a weight, taken of its sources."""
    taken = zip(weight.sources, weight.rows, strict=True)
    return np.concatenate([files[s][rows.start : rows.stop] for s, rows in taken])


def quantize(values: np.ndarray, kind: str) -> bytes:
    """f32 values to file bytes by the oracle's own quantizer; for some quantizations it has none,
    and then any blocks will do whose numbers are of ordinary size."""
    kind_id = gguf_oracle.GGMLQuantizationType[kind]
    try:
        return gguf_oracle.quantize(np.ascontiguousarray(values, np.float32), kind_id).tobytes()
    except NotImplementedError:
        count = values.size // QUANTS[kind].block_size
        factors = 1 + np.random.default_rng(count).random(64)
        return random_blocks(kind, count, factors / 2000)


def oracle(kind: str, raw: bytes) -> np.ndarray:
    """The numbers of file blocks as the oracle dequantizes them, flat f32."""
    kind_id = gguf_oracle.GGMLQuantizationType[kind]
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, QUANTS[kind].block_bytes)
    return gguf_oracle.dequantize(blocks, kind_id).ravel()


def file_of(
    tensors: Mapping[str, tuple[str, bytes]], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[GGUF, bytes]:
    """Tensor data laid out as in a GGUF file (without its header), and its index."""
    data, infos = b"", {}
    for name, (kind, raw) in tensors.items():
        data += b"\0" * (-len(data) % ALIGN)
        infos[name] = TensorInfo(name, shapes[name], kind, len(data), len(raw))
        data += raw
    return GGUF(3, {}, infos, 0, len(data)), data


class Harness:
    """One page with a GPU device; ``run`` gives the outputs of a case."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def describe(self) -> str | None:
        """The adapter, or None."""
        text: str | None = self.page.evaluate("harness.describe()")
        return text

    def run(self, case: Case, outputs: Sequence[Tensor], repeat: int = 1) -> list[np.ndarray]:
        """The contents of ``outputs`` after the plan ran on the GPU."""
        read, _ = self.timed(case, outputs, repeat)
        return read

    def timed(
        self, case: Case, outputs: Sequence[Tensor], repeat: int = 1
    ) -> tuple[list[np.ndarray], float]:
        """Outputs, and milliseconds of the run."""
        read, result = self._run(case, outputs, repeat, [])
        return read, result["ms"]

    def growing(
        self, case: Case, outputs: Sequence[Tensor], repeat: int, sizes: Sequence[int]
    ) -> tuple[list[np.ndarray], list[tuple[bool, dict[str, int]]]]:
        """Outputs of ``repeat`` replays, and as many after each growth of the KV pools to one of
        ``sizes``, in blocks, while the ones before are under way; for each growth whether there was
        the memory for it, and the bytes held then."""
        steps = [tensors_to_wire(pools_of([case.plan], n).values()) for n in sizes]
        read, result = self._run(case, outputs, repeat, steps)
        return read, [(done, held) for done, held in result["grown"]]

    def _run(
        self, case: Case, outputs: Sequence[Tensor], repeat: int, grow: list[list[dict[str, Any]]]
    ) -> tuple[list[np.ndarray], dict[str, Any]]:
        plan = case.plan
        tensors = list(persistent_tensors([plan]).values())
        places = {t.name: place(plan, t) for t in outputs}
        arrays = {**case.arrays, STEP.name: np.frombuffer(case.step.pack(), np.uint32)}
        used = {t.name for t in tensors}
        job = {
            "buffers": [*tensors_to_wire(tensors), *slots_to_wire([plan])],
            "shards": self._shards(case),
            "kernels": {n: shader_to_wire(s, s.code()) for n, s in repack_kernels().items()},
            "inputs": {
                n: base64.b64encode(a.tobytes()).decode() for n, a in arrays.items() if n in used
            },
            "wire": plans_to_wire([plan]),
            "plan": plan.name,
            "tokens": case.step.num_tokens,
            "repeat": repeat,
            "grow": grow,
            "outputs": {places[t.name]: t.nbytes for t in outputs},
        }
        result = self.page.evaluate("job => harness.run(job)", job)
        read = [_array(t, base64.b64decode(result["read"][places[t.name]])) for t in outputs]
        return read, result

    def _shards(self, case: Case) -> list[dict[str, Any]]:
        shapes = {name: values.shape for name, values in case.weights.items()}
        index, data = file_of(case.quantized(), shapes)
        cuts = [data[i : i + case.shard_size] for i in range(0, len(data), case.shard_size)]
        jobs = shard_jobs(index, weights_of([case.plan]), [len(c) for c in cuts])
        return [
            {
                "data": base64.b64encode(cut).decode(),
                "carry": int(job.carry),
                "jobs": [j.to_wire() for j in job.jobs],
            }
            for cut, job in zip(cuts, jobs, strict=True)
        ]


def place(plan: Plan, tensor: Tensor) -> str:
    """The buffer that holds a tensor."""
    if tensor.name in plan.slot_of:
        return f"slot.{plan.slot_of[tensor.name]}"
    return tensor.name


def _array(tensor: Tensor, raw: bytes) -> np.ndarray:
    dtype = _DTYPES.get(tensor.dtype, np.float32)
    count = int(np.prod(tensor.shape))
    return np.frombuffer(raw, dtype)[:count].reshape(tensor.shape)
