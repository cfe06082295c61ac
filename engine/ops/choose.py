"""The sampler for whatever else a request asks of it: penalties, bias, mask, truncation; and the
log-probabilities of what was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from engine.ops.sample import (
    ADVANCE_SLOTS,
    ADVANCED,
    MAX_SLICES,
    advance,
    advance_args,
    gumbel,
    one_team,
)
from engine.ops.state import (
    FREQUENCY,
    IN_PROMPT,
    LOGPROB_WORDS,
    LOGPROBS,
    MASKED,
    MIN_P,
    NUM_SAMPLED,
    NUM_TOKENS,
    NUM_TOP,
    POSITION,
    PRESENCE,
    REPETITION,
    RING,
    SAMPLING,
    SEED,
    STEP,
    STEP_SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    bias_tensor,
    counts_tensor,
    mask_tensor,
)
from engine.plan import Call, Grid, PlanBuilder, Tensor
from engine.shaders import Shader, Slot

LOWEST = -1.0e30  # the logit of a token that may not come
SLICE_WORKGROUP = 64
_SAMPLING_SLOT = Slot("sampling", "Sampling")
_SCORE = ("step", "sampling", "noise", "score")  # pieces


def choose(b: PlanBuilder, logits: Tensor, tokens: Tensor) -> None:
    """Choose the next token from logits (1, N) f32 as the sampling record says, and move on as
    ``sample`` does; ``counts`` learns of the token.

    With adjusted logits z, a token may come if fewer than top_k tokens have a larger z, these have
    less than top_p of softmax(z / temperature) together (Holtzman et al., 2019), and it has at
    least min_p of the largest probability (Nguyen et al., 2024).
    """
    adjusted, slices = _adjust(b, logits)
    n = logits.shape[1]
    consts, team = _one_team(b)
    shader = Shader(
        "sample_choose",
        (
            _SAMPLING_SLOT,
            Slot("adjusted", "array<f32>"),
            Slot("slices", "array<vec4<f32>>"),
            Slot("counts", "array<u32>", "read_write"),
            *ADVANCE_SLOTS,
        ),
        lib=(*_SCORE, "advance", f"team_best_{team}", f"team_sum_{team}"),
        consts=consts,
        overrides={**_sliced(n), "RING": RING},
    )
    args = {
        "sampling": SAMPLING,
        "adjusted": adjusted,
        "slices": slices,
        "counts": counts_tensor(n),
        **advance_args(tokens),
    }
    b.call(Call("sample_choose", args, ("counts", *ADVANCED), _choose_reference, shader))


def _adjust(b: PlanBuilder, logits: Tensor) -> tuple[Tensor, Tensor]:
    n = logits.shape[1]
    adjusted = b.activation("adjusted", n)
    slices = b.activation("slices", slices_of(n), 4)
    shader = Shader(
        "sample_adjust",
        (
            STEP_SLOT,
            _SAMPLING_SLOT,
            Slot("logits", "array<f32>"),
            Slot("counts", "array<u32>"),
            Slot("bias", "array<f32>"),
            Slot("mask", "array<u32>"),
            Slot("adjusted", "array<f32>", "read_write"),
            Slot("slices", "array<vec4<f32>>", "read_write"),
        ),
        lib=_SCORE,
        consts={"WORKGROUP": SLICE_WORKGROUP},
        overrides=_sliced(n),
    )
    args = {
        "step": STEP,
        "sampling": SAMPLING,
        "logits": logits,
        "counts": counts_tensor(n),
        "bias": bias_tensor(n),
        "mask": mask_tensor(n),
        "adjusted": adjusted,
        "slices": slices,
    }
    writes = ("adjusted", "slices")
    b.call(Call("sample_adjust", args, writes, _adjust_reference, shader, _a_thread_each(n)))
    return adjusted, slices


def logprobs(b: PlanBuilder, logits: Tensor, tokens: Tensor) -> None:
    """Put log softmax(logits) of the token chosen last, ``tokens[0]``, and of the likeliest ones
    into the ring LOGPROBS, at the place of that token in the ring of sampled ids."""
    n = logits.shape[1]
    slices = b.activation("slices", slices_of(n), 4)
    cut = Shader(
        "logprob_slices",
        (Slot("logits", "array<f32>"), Slot("slices", "array<vec4<f32>>", "read_write")),
        consts={"WORKGROUP": SLICE_WORKGROUP},
        overrides=_sliced(n),
    )
    args = {"logits": logits, "slices": slices}
    b.call(Call("logprob_slices", args, ("slices",), lambda _: None, cut, _a_thread_each(n)))
    consts, team = _one_team(b)
    shader = Shader(
        "logprobs",
        (
            STEP_SLOT,
            _SAMPLING_SLOT,
            Slot("logits", "array<f32>"),
            Slot("slices", "array<vec4<f32>>"),
            Slot("tokens", "array<u32>"),
            Slot("logprobs", "array<u32>", "read_write"),
        ),
        lib=("step", "sampling", f"team_best_{team}", f"team_sum_{team}"),
        consts=consts,
        overrides={**_sliced(n), "RING": RING, "WORDS": LOGPROB_WORDS},
    )
    args = {
        "step": STEP,
        "sampling": SAMPLING,
        "logits": logits,
        "slices": slices,
        "tokens": tokens,
        "logprobs": LOGPROBS,
    }
    b.call(Call("logprobs", args, ("logprobs",), _logprobs_reference, shader))


def slices_of(n: int) -> int:
    """Slices that n tokens are cut into; the references need none."""
    return ceil(n / ceil(n / MAX_SLICES))


def _sliced(n: int) -> dict[str, int]:
    return {"N": n, "SLICES": slices_of(n), "SLICE": ceil(n / MAX_SLICES)}


def _a_thread_each(n: int) -> Grid:
    return Grid(ceil(slices_of(n) / SLICE_WORKGROUP))


def _one_team(b: PlanBuilder) -> tuple[dict[str, int], str]:
    """As ``one_team``, with the constants of the pieces."""
    workgroup, team = one_team(b)
    consts = {"WORKGROUP": workgroup}
    return (consts | {"TEAM": workgroup} if workgroup > 1 else consts), team


def _float(record: Any, word: int) -> float:
    import numpy as np

    return float(record[word : word + 1].view(np.float32)[0])


def _adjust_reference(a: Mapping[str, Any]) -> None:
    import numpy as np

    asked, z, counts = a["sampling"], a["logits"][0].copy(), a["counts"]
    repetition = np.float32(_float(asked, REPETITION))
    seen = counts != 0
    z[seen] = np.where(z[seen] > 0, z[seen] / repetition, z[seen] * repetition)
    count = counts & np.uint32(IN_PROMPT - 1)
    presence, frequency = _float(asked, PRESENCE), _float(asked, FREQUENCY)
    z -= np.where(count > 0, presence + frequency * count, 0).astype(np.float32)
    z += a["bias"]
    if asked[MASKED]:
        bits = np.unpackbits(a["mask"].view(np.uint8), bitorder="little")[: len(z)]
        z[bits == 0] = LOWEST
    a["adjusted"][:] = z


def _choose_reference(a: Mapping[str, Any]) -> None:
    """By sorting, as the definition goes."""
    import numpy as np

    step, asked, z = a["step"], a["sampling"], a["adjusted"]
    temperature = _float(step, TEMPERATURE)
    scaled = z / np.float32(temperature) if temperature > 0 else z
    allowed = z > LOWEST
    if asked[TOP_K] or _float(asked, TOP_P) < 1 or _float(asked, MIN_P) > 0:
        allowed &= _left(scaled, int(asked[TOP_K]), _float(asked, TOP_P), _float(asked, MIN_P))
    if temperature > 0:
        position = int(step[POSITION] + step[NUM_TOKENS])
        scaled = scaled + gumbel(int(step[SEED]), position, len(z))
    choice = int(np.where(allowed, scaled, -np.inf).argmax())
    a["counts"][choice] += 1
    advance(a, choice)


def _left(scaled: Any, top_k: int, top_p: float, min_p: float) -> Any:
    """Which tokens the truncations leave."""
    import numpy as np

    likely = np.exp(scaled - scaled.max())
    ordered = np.sort(likely)[::-1]
    # Of tokens that are as likely as each other, all come or none.
    rank = np.searchsorted(-ordered, -likely, side="left")
    above = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])[rank]
    kept = (rank < (top_k or len(scaled))) & (above < top_p * likely.sum(dtype=np.float64))
    return (kept & (likely >= np.float32(min_p))) | (rank == 0)


def _logprobs_reference(a: Mapping[str, Any]) -> None:
    import numpy as np

    logits = a["logits"][0]
    top = logits.max()
    values = (logits - top - np.log(np.exp(logits - top).sum(dtype=np.float64))).astype(np.float32)
    count = int(a["sampling"][NUM_TOP])
    likeliest = np.argsort(-logits, kind="stable")[:count].astype(np.uint32)
    entry = a["logprobs"][(int(a["step"][NUM_SAMPLED]) - 1) % RING]
    entry[:1] = values[a["tokens"][:1]].view(np.uint32)
    entry[1 : 1 + 2 * count : 2] = likeliest
    entry[2 : 2 + 2 * count : 2] = values[likeliest].view(np.uint32)
