"""What does a sliding context cost in accuracy? Perplexity of a long text, token by token.

    .venv/bin/python -m tests.bench.sliding [MODEL.gguf] [TEXT] [--context 256] [--tokens 1000]

Whenever the context is full, it slides as in an answer (engine/scheduler.py says by how much); in a
second pass, what would be left is computed afresh instead. The keys of a context that slid were
rotated back, and its keys and values come of tokens that are gone. Natively with the NumPy
references; two minutes for SmolLM2-135M and 1000 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from array import array
from pathlib import Path

import numpy as np

from engine.config import LoadConfig
from engine.engine import Engine
from engine.loader import LoadedModel
from engine.models.plans import DECODE, PREFILL, SHIFT
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.shift import pack_shift, shift_tensor
from engine.ops.state import STEP, StepRecord, logits_tensor, tokens_tensor
from engine.scheduler import Scheduler
from engine.session import Session
from tests.native import NativeHost

ROOT = Path(__file__).resolve().parents[2]


async def losses(
    model: LoadedModel, scheduler: Scheduler, ids: list[int], afresh: bool
) -> list[float]:
    """-ln of the probability of every token but the first."""
    session = Session(model.pool)
    session.reserve(model.context)
    write_table(model, session)
    found = []
    for i, id in enumerate(ids[:-1]):
        if session.num_cached == model.context:
            await make_room(model, scheduler, session, afresh)
        session.tokens.append(id)
        await step(model, DECODE, [id], session.num_cached)
        session.num_cached += 1
        raw = await model.device.read(logits_tensor(model.config.vocab))
        logits = np.frombuffer(raw, np.float32).astype(np.float64)
        top = logits.max()
        found.append(top + math.log(np.exp(logits - top).sum()) - logits[ids[i + 1]])
        if i % 100 == 99:
            print(f"  {i + 1} of {len(ids) - 1} tokens", flush=True)
    session.release()
    model.pool.forget()
    return found


async def make_room(
    model: LoadedModel, scheduler: Scheduler, session: Session, afresh: bool
) -> None:
    keep, drop = scheduler.slide
    pairs = session.slide(keep, drop)
    session.reserve(model.context)
    write_table(model, session)
    if afresh:
        for start in range(0, session.num_cached, model.device.traits.chunk):
            chunk = session.tokens[start:][: model.device.traits.chunk]
            await step(model, PREFILL, chunk, start)
    else:
        model.device.write(shift_tensor(model.kv), pack_shift(drop * KV_BLOCK, pairs))
        await model.device.run([SHIFT], 1, 1, 0, 0)


async def step(model: LoadedModel, plan: str, ids: list[int], position: int) -> None:
    model.device.write(tokens_tensor(len(ids)), array("I", ids).tobytes())
    model.device.write(STEP, StepRecord(position, len(ids)).pack())
    await model.device.run([plan], len(ids), 1, 0, 0)


def write_table(model: LoadedModel, session: Session) -> None:
    model.device.write(model.kv.block_table, array("I", session.blocks).tobytes())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    models = sorted((ROOT / ".cache/models").rglob("*.gguf"))
    parser.add_argument("model", nargs="?", default=models[0] if models else None, type=Path)
    parser.add_argument("text", nargs="?", default=ROOT / "ARCHITECTURE.md", type=Path)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1000)
    args = parser.parse_args()
    engine = Engine(NativeHost(args.model))
    model = await engine.load(LoadConfig(context=args.context), lambda *_: None)
    scheduler = Scheduler(model.device.traits.chunk, model.context)
    ids = (await model.encoder.encode(args.text.read_text(encoding="utf-8")))[: args.tokens]
    perplexity = {}
    for name, afresh in (("sliding", False), ("computed afresh", True)):
        print(name, flush=True)
        after = (await losses(model, scheduler, ids, afresh))[model.context :]
        perplexity[name] = math.exp(sum(after) / len(after))
    print(
        f"perplexity of the {len(ids) - 1 - model.context} tokens after the first {model.context}:"
    )
    for name, value in perplexity.items():
        print(f"  {value:8.3f}  {name}")
    print(f"  {perplexity['sliding'] / perplexity['computed afresh']:8.3f}  ratio")


if __name__ == "__main__":
    asyncio.run(main())
