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

from engine import ops
from engine.models.base import Model
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
    for layer, reach in enumerate(model.config.reach):
        sliding.layer = layer
        ops.shift(sliding, kv, layer, reach.rope)

    builders = [prefill, head, decode, sliding]
    for name, op in ((SAMPLE, ops.sample), (CHOOSE, ops.choose), (LOGPROBS, ops.logprobs)):
        builders.append(PlanBuilder(name, traits))
        op(builders[-1], logits, tokens)
    return {b.name: b.build() for b in builders}
