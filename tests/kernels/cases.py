"""Inputs for kernel tests: devices that force each variant, and numbers with outliers."""

from __future__ import annotations

import numpy as np

from engine.cases import HALVES
from engine.plan import PlanBuilder, Tensor, Traits, Weight
from engine.weights.quants import QUANTS, make_weight

# The devices whose kernels are tested. The harness gives the last one the subgroups of its adapter:
# those of SwiftShader have 4 lanes, so that the subgroup variants run there with teams of 4.
DEVICES = {
    "plain": Traits("webgpu", "plain", barriers=False),
    "plain-q16": Traits("webgpu", "plain-q16", barriers=False, activations="q16"),
    "plain-q8": Traits("webgpu", "plain-q8", barriers=False, activations="q8"),
    "workgroup": Traits("webgpu", "workgroup"),
    "workgroup-q16": Traits("webgpu", "workgroup-q16", activations="q16"),
    "workgroup-q8": Traits("webgpu", "workgroup-q8", activations="q8"),
    "subgroup": Traits("webgpu", "subgroup", subgroup=4),
}


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Normal numbers with a few outliers of 30 times the size, as activations have them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(np.float32)
    outliers = rng.random(shape) < 0.01
    return np.where(outliers, values * 30, values).astype(np.float32)


def random_blocks(kind: str, count: int, scales: np.ndarray) -> bytes:
    """``count`` file blocks of random bytes, but for their halves, drawn from ``scales``."""
    rng = np.random.default_rng(count)
    blocks = rng.integers(0, 256, (count, QUANTS[kind].block_bytes), np.uint8)
    for start in HALVES[kind]:
        halves = rng.choice(scales, (count, 1)).astype(np.float16)
        blocks[:, start : start + 2] = halves.view(np.uint8)
    return blocks.tobytes()


def state(name: str, *shape: int, dtype: str = "f32") -> Tensor:
    """An input of a plan."""
    return Tensor(name, shape, dtype, "state")  # type: ignore[arg-type]


def weight(name: str, *shape: int, quant: str = "F32") -> Weight:
    """A weight in a GGUF tensor of the same name."""
    return make_weight(name, shape[1:], quant, {name: shape[0]})


def builder(device: str, tokens: int = 1) -> PlanBuilder:
    """A plan on one of DEVICES."""
    return PlanBuilder("case", DEVICES[device], tokens)


def rows(values: np.ndarray, capacity: int) -> np.ndarray:
    """Values padded to ``capacity`` rows with not-a-number, which no kernel may read."""
    padded = np.full((capacity, *values.shape[1:]), np.nan, values.dtype)
    padded[: len(values)] = values
    return padded


def assert_close(got: np.ndarray, want: np.ndarray, relative: float) -> None:
    """All finite, and off by at most ``relative`` of the largest wanted value."""
    assert got.shape == want.shape
    assert np.isfinite(got).all(), "the kernel made a value that is not finite"
    scale = max(float(np.abs(want).max()), 1e-6)
    error = float(np.abs(got.astype(np.float64) - want).max()) / scale
    assert error <= relative, f"relative error {error:.3g} > {relative:.3g}"
