"""What a model computes for the last token of a prompt, call by call: what `inspect` answers."""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from engine.answer import Run, Stopped
from engine.backends.summary import Summary
from engine.config import GenerateConfig
from engine.errors import OctavoError
from engine.loader import Host, LoadedModel
from engine.models.plans import DECODE
from engine.ops.state import STEP, StepRecord, logits_tensor, tokens_tensor
from engine.plan import Call, Plan, Tensor, Weight
from engine.prompt import Prompt, check_length
from engine.scheduler import Scheduler
from engine.session import Session

_PLACE = re.compile(r"^blk\.\d+\.|\.weight$")  # what GGUF puts around a weight's own name


@dataclass(frozen=True)
class Seen:
    """A tensor that a call wrote."""

    call: Call
    tensor: Tensor
    summary: Summary

    def to_wire(self) -> dict[str, Any]:
        """As it crosses to the page."""
        return {
            "name": self.tensor.name if self.tensor.role == "state" else name_of(self.call),
            "kernel": self.call.label,
            "layer": self.call.layer,
            "shape": self.tensor.shape,
            **self.summary.to_wire(),
        }


def name_of(call: Call) -> str:
    """What a call is in a model: the weight that it multiplies with, or its op."""
    weight = call.args.get("w")
    return _PLACE.sub("", weight.name) if isinstance(weight, Weight) else call.op


def telling(plan: Plan) -> list[dict[str, int]]:
    """For each call of a step of one token, the arguments whose numbers say something by
    themselves, and their elements: results in f32, but for scales of quantized values."""
    return [
        {arg: plan.elements(call.args[arg], 1) for arg in results if call.args[arg].dtype == "f32"}
        if not call.value
        else {}
        for call, results in zip(plan.calls, plan.results(), strict=True)
    ]


async def inspect(
    host: Host,
    model: LoadedModel,
    scheduler: Scheduler,
    ids: list[int],
    top: int,
    stopped: Stopped,
) -> dict[str, Any]:
    """A summary of each tensor that the step of the last of ``ids`` computes, and the ``top``
    likeliest tokens after it. The prompt before it is computed as for an answer. Raises OctavoError
    prompt.empty, prompt.too_long, or request.cancelled if stopped."""
    config = GenerateConfig(max_tokens=1)
    check_length(ids, model.context, config)
    run = _Inspected(model, Session(model.pool), scheduler, config, host, Prompt(ids))
    async for _ in run.deltas(stopped):
        pass
    if not run.logits:
        raise OctavoError("request.cancelled")
    return {
        "tokens": len(ids),
        "token": _text(model, ids[-1]),
        "layers": model.config.num_layers,
        "calls": [seen.to_wire() for seen in run.seen],
        "top": _likeliest(model, run.logits, top),
    }


class _Inspected(Run):
    """Computes a prompt and generates nothing; the last token's step call by call."""

    seen: list[Seen]
    logits: array[float] = array("f")

    async def _prefill(self, stopped: Stopped) -> int | None:
        session = self._session
        *begin, last = session.tokens
        session.tokens = begin
        if session.num_cached < len(begin):
            await super()._prefill(stopped)  # it also samples, in vain
        if session.num_cached == len(begin):
            session.tokens = [*begin, last]
            await self._look(stopped)
        return None

    async def _look(self, stopped: Stopped) -> None:
        """Run the step of the last token."""
        session, device = self._session, self._device
        await self._add_blocks(len(session.tokens))
        self._write_table(0)
        device.write(tokens_tensor(1), array("I", session.tokens[-1:]).tobytes())
        device.write(STEP, StepRecord(len(session.tokens) - 1, 1).pack())
        plan = self._model.plans[DECODE]
        self.seen = []
        for index, wanted in enumerate(telling(plan)):
            if stopped():
                return
            call = plan.calls[index]
            found = await self._wait(device.survey(plan, index, 1, wanted))
            self.seen += [Seen(call, call.args[arg], it) for arg, it in found.items()]
        self.logits = array("f", await device.read(logits_tensor(self._model.config.vocab)))


def _likeliest(model: LoadedModel, logits: array[float], top: int) -> list[dict[str, Any]]:
    """The likeliest tokens, with logits and probabilities (softmax); numbers that are none, and
    infinite ones, take no part."""
    finite = [id for id, logit in enumerate(logits) if math.isfinite(logit)]
    best = nlargest(top, finite, key=logits.__getitem__)
    total = sum(math.exp(logits[id] - logits[best[0]]) for id in finite)
    return [
        {
            "id": id,
            "text": _text(model, id),
            "logit": logits[id],
            "probability": math.exp(logits[id] - logits[best[0]]) / total,
        }
        for id in best
    ]


def _text(model: LoadedModel, id: int) -> str:
    return model.token_bytes[id].decode(errors="replace")
