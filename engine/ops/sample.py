"""The plain sampler: greedy, or by temperature with Gumbel noise."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from engine.ops.state import (
    NUM_SAMPLED,
    NUM_TOKENS,
    POSITION,
    RING,
    SAMPLED,
    SEED,
    STEP,
    TEMPERATURE,
)
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

MAX_SLICES = 2048
ADVANCED = ("step", "tokens", "sampled")  # what the end of a sampler writes
ADVANCE_SLOTS = (
    Slot("step", "Step", "read_write"),
    Slot("tokens", "array<u32>", "read_write"),
    Slot("sampled", "array<u32>", "read_write"),
)


def sample(b: PlanBuilder, logits: Tensor, tokens: Tensor) -> None:
    """Choose the next token from logits (1, N) f32, put it into ``tokens[0]`` and into the ring
    of sampled ids, and move the step record on by the tokens of this step."""
    n = logits.shape[1]
    slices = min(MAX_SLICES, n)
    best_score = b.activation("best_score", slices)
    best_id = b.activation("best_id", slices, dtype="u32")
    scan = Shader(
        "sample_scan",
        (
            Slot("step", "Step"),
            Slot("logits", "array<f32>"),
            Slot("best_score", "array<f32>", "read_write"),
            Slot("best_id", "array<u32>", "read_write"),
        ),
        lib=("step", "noise"),
        consts={"WORKGROUP": 64},
        overrides={"N": n, "SLICES": slices},
    )
    args = {"step": STEP, "logits": logits, "best_score": best_score, "best_id": best_id}
    writes = ("best_score", "best_id")
    grid = Grid(ceil(slices / 64))
    b.call(Call("sample_scan", args, writes, _scan_reference, scan, grid, private=writes))

    workgroup, team = one_team(b)
    pick = Shader(
        "sample_pick",
        (Slot("best_score", "array<f32>"), Slot("best_id", "array<u32>"), *ADVANCE_SLOTS),
        lib=("step", "advance", f"team_best_{team}"),
        consts={"WORKGROUP": workgroup},
        overrides={"SLICES": slices, "RING": RING},
    )
    args = {"best_score": best_score, "best_id": best_id, **advance_args(tokens)}
    b.call(Call("sample_pick", args, ADVANCED, _pick_reference, pick))


def advance_args(tokens: Tensor) -> dict[str, Tensor]:
    """The arguments of ADVANCE_SLOTS."""
    return {"step": STEP, "tokens": tokens, "sampled": SAMPLED}


def one_team(b: PlanBuilder) -> tuple[int, str]:
    """Lanes of the only workgroup of a kernel, and the piece that joins what they found."""
    return (256, "workgroup") if b.traits.barriers else (1, "alone")


def _scan_reference(a: Mapping[str, Any]) -> None:
    import numpy as np

    step, scores = a["step"], a["logits"][0]
    temperature = step[TEMPERATURE : TEMPERATURE + 1].view(np.float32)[0]
    if temperature > 0:
        position = step[POSITION] + step[NUM_TOKENS]
        scores = scores / temperature + gumbel(int(step[SEED]), int(position), len(scores))
    choice = int(scores.argmax())
    a["best_score"][:] = -np.inf
    a["best_id"][:] = np.uint32(0xFFFFFFFF)
    a["best_score"][0], a["best_id"][0] = scores[choice], choice


def _pick_reference(a: Mapping[str, Any]) -> None:
    advance(a, a["best_id"][a["best_score"].argmax()])


def advance(a: Mapping[str, Any], choice: int) -> None:
    """NumPy: the end of every sampler, as in wgsl/lib/advance.wgsl."""
    step = a["step"]
    a["tokens"][0] = choice
    a["sampled"][int(step[NUM_SAMPLED]) % RING] = choice
    step[NUM_SAMPLED] += 1
    step[POSITION] += step[NUM_TOKENS]
    step[NUM_TOKENS] = 1


def gumbel(seed: int, position: int, count: int) -> Any:
    """Gumbel noise (count,) f32 in NumPy, the same bits as wgsl/lib/noise.wgsl."""
    import numpy as np

    def pcg(v: Any) -> Any:
        state = v * np.uint32(747796405) + np.uint32(2891336453)
        word = ((state >> ((state >> np.uint32(28)) + np.uint32(4))) ^ state) * np.uint32(277803737)
        return (word >> np.uint32(22)) ^ word

    one = np.zeros(1, np.uint32)
    key = pcg((one + np.uint32(position)) ^ pcg(one + np.uint32(seed)))
    bits = pcg(np.arange(count, dtype=np.uint32) ^ key)
    uniform = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) / np.float32(8388608)
    return -np.log(-np.log(uniform))
