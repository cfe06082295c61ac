"""The plans of a model: what the engine replays.

prefill   ids of a chunk -> KV, last hidden state   (up to traits.chunk tokens)
head      last hidden state -> logits               (after the last chunk)
decode    next token -> KV -> logits                (one token, needs nothing of the CPU)
sample    logits -> next token                      (greedy, or by temperature)
choose    logits -> next token                      (with penalties, bias, mask, truncation)
logprobs  logits, next token -> log-probabilities   (where they are asked for)
shift     K and V of blocks -> those of earlier positions  (when the context slides)

A step is one of the first three and, if it ends with a token, a sampler after it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from engine import ops
from engine.errors import OctavoError
from engine.models.base import Model, ModelConfig
from engine.ops import KVLayout
from engine.ops.state import logits_tensor, tokens_tensor
from engine.plan import Plan, PlanBuilder, Tensor, Traits

PREFILL, HEAD, DECODE = "prefill", "head", "decode"
SAMPLE, CHOOSE, LOGPROBS = "sample", "choose", "logprobs"
SHIFT = "shift"


def build_plans(model: Model, traits: Traits, kv: KVLayout) -> dict[str, Plan]:
    """The plans of a model on a device with ``traits``."""
    tokens = tokens_tensor(traits.chunk)
    logits = logits_tensor(model.config.vocab)
    hidden = Tensor("hidden", (1, model.config.hidden), "f32", "state")

    prefill = PlanBuilder(PREFILL, traits, traits.chunk)
    ops.last_token(prefill, model.layers(prefill, tokens, kv), hidden)

    head = PlanBuilder(HEAD, traits)
    model.head(head, hidden, logits)

    decode = PlanBuilder(DECODE, traits)
    model.head(decode, model.layers(decode, tokens, kv), logits)

    sliding = PlanBuilder(SHIFT, traits)
    for layer in range(model.config.num_layers):
        ops.shift(sliding, kv, layer)

    builders = [prefill, head, decode, sliding]
    for name, op in ((SAMPLE, ops.sample), (CHOOSE, ops.choose), (LOGPROBS, ops.logprobs)):
        builders.append(PlanBuilder(name, traits))
        op(builders[-1], logits, tokens)
    return {b.name: b.build() for b in builders}


def rope_table(config: ModelConfig, context: int, factors: Sequence[float] = ()) -> bytes:
    """cos and sin of position / scale * base^(-2i / head_dim) / factor_i, (context, head_dim / 2,
    2) f32, as ggml_rope_ext has it. ``factors`` are the numbers in ``config.rope_factors``.

    Computed here in double precision: a shader's sin and cos may be off by 2^-11. Raises
    gguf.invalid for factors that are not positive numbers.
    """
    half = config.head_dim // 2
    factors = factors or [1.0] * half
    if len(factors) != half or not all(0 < factor < math.inf for factor in factors):
        raise OctavoError("gguf.invalid", "The factors of rope frequencies should be above 0.")
    frequencies = [
        config.rope_base ** (-i / half) / factor / config.rope_scale
        for i, factor in enumerate(factors)
    ]
    table = array("f")
    for position in range(context):
        for frequency in frequencies:
            angle = position * frequency
            table.append(math.cos(angle))
            table.append(math.sin(angle))
    return table.tobytes()
