"""A full context: the answer ends and says why, or the context slides."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from engine.backends.base import Buffer
from engine.backends.cpu import CpuDevice
from engine.errors import OctavoError
from engine.kv import BlockPool, budget
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.state import SEED, STEP
from engine.plan import Tensor
from engine.session import NoRoomError, Session
from tests.native import ready_of
from tests.unit.sliding import CONTEXT, PROMPT, accounted, complete, loaded

KEEP, DROP = 2, 1  # blocks, of the eight that a context of 128 has


class Recorder(CpuDevice):
    """Remembers the keys of the first layer after each slide, and the seeds of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.slides: list[Any] = []
        self.seeds: set[int] = set()

    def write(self, tensor: Tensor, data: Buffer, offset: int = 0) -> None:
        super().write(tensor, data, offset)
        if tensor == STEP:
            self.seeds.add(int(self._arrays[STEP.name][SEED]))

    async def run(self, plans: Any, tokens: int, repeat: int, first: int, count: int) -> list[int]:
        ids = await super().run(plans, tokens, repeat, first, count)
        if list(plans) == ["shift"]:
            self.slides.append(self._arrays["k.0"].copy())
        return ids


def test_a_full_context_ends_the_answer_and_says_so() -> None:
    async def run() -> None:
        engine = await loaded()
        full = await complete(engine, PROMPT)
        assert (len(full.ids), full.finish_reason) == (CONTEXT - len(PROMPT), "length")
        assert full.to_wire()["code"] == "context.full"
        short = await complete(engine, PROMPT, max_tokens=5)
        assert (short.finish_reason, "code" in short.to_wire()) == ("length", False)

    asyncio.run(run())


def test_a_sliding_context_goes_on() -> None:
    async def run() -> None:
        engine = await loaded()
        stopped = await complete(engine, PROMPT)
        await engine.reset()
        sliding = await complete(engine, PROMPT, max_tokens=250, context_full="slide")
        assert sliding.ids[: len(stopped.ids)] == stopped.ids
        assert (len(sliding.ids), sliding.finish_reason) == (250, "length")
        assert "code" not in sliding.to_wire()
        accounted(engine)
        # What was moved is found by nobody: another answer is as if alone.
        again = await complete(engine, PROMPT, max_tokens=250, context_full="slide")
        assert again.ids == sliding.ids
        others = (sliding.ids + PROMPT)[-100:]
        reused = await complete(engine, others, max_tokens=20)
        await engine.reset()
        assert (await complete(engine, others, max_tokens=20)).ids == reused.ids

    asyncio.run(run())


@pytest.mark.parametrize("name", ["tiny", "tiny_gemma3", "tiny_phi3"])
def test_the_keys_of_a_window_are_those_of_its_positions(name: str) -> None:
    """In the first layer a key depends on its token and position alone: after two slides the
    window's keys are those that a fresh engine computes for these tokens."""

    async def run() -> None:
        device = Recorder()
        engine = await loaded(device, name)
        answer = await complete(engine, PROMPT, max_tokens=80, context_full="slide")
        assert len(device.slides) > 1
        assert len(device.seeds) == len(device.slides) + 1, "positions come again, noise does not"
        tokens = PROMPT + answer.ids
        number = 2
        window = tokens[: CONTEXT + (number - 1) * DROP * KV_BLOCK]
        window = window[: KEEP * KV_BLOCK] + window[(KEEP + number * DROP) * KV_BLOCK :]
        fresh = CpuDevice()
        await complete(await loaded(fresh, name, context=256), [*window, 1], max_tokens=1)
        wanted = fresh._arrays["k.0"][: len(window) // KV_BLOCK]
        got = device.slides[number - 1]
        for block in wanted:
            assert min(float(np.abs(block - other).max()) for other in got) < 1e-3

    asyncio.run(run())


def test_a_prompt_that_is_too_long_loses_its_oldest_tokens() -> None:
    async def run() -> None:
        engine = await loaded()
        long = [3 + 11 * i % 400 for i in range(500)]
        with pytest.raises(OctavoError, match="500 tokens"):
            await complete(engine, long, max_tokens=5)
        answer = await complete(engine, long, max_tokens=5, context_full="slide")
        dropped = 500 - (CONTEXT - DROP * KV_BLOCK)
        dropped = -(-dropped // KV_BLOCK) * KV_BLOCK
        kept = long[: KEEP * KV_BLOCK] + long[KEEP * KV_BLOCK + dropped :]
        await engine.reset()
        assert (await complete(engine, kept, max_tokens=5)).ids == answer.ids
        accounted(engine)

    asyncio.run(run())


def test_a_slide_over_shared_blocks_makes_the_pool_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another answer has the same beginning; there is a budget for copies of it."""
    monkeypatch.setattr(budget, "FIRST_BLOCKS", 1)

    async def run() -> None:
        engine = await loaded(kv_tokens=4 * CONTEXT)
        asked: dict[str, Any] = {"max_tokens": 90, "context_full": "slide"}
        alone = await complete(engine, PROMPT, **asked)
        pair = await asyncio.gather(*(complete(engine, PROMPT, i, **asked) for i in (1, 2)))
        assert [a.ids for a in pair] == [alone.ids] * 2
        assert not [r for r in engine._requests if r.waiting]
        accounted(engine)

    asyncio.run(run())


@pytest.mark.parametrize("context", [16, 31])
def test_a_context_too_short_to_slide_says_so(context: int) -> None:
    async def run() -> None:
        engine = await loaded(context=context)
        with pytest.raises(OctavoError, match="too short to slide"):
            await complete(engine, PROMPT, context_full="slide")
        assert (await complete(engine, PROMPT[:4])).context_full

    asyncio.run(run())


@pytest.mark.parametrize("context", [32, 33, 47])
def test_short_contexts_slide(context: int) -> None:
    async def run() -> None:
        engine = await loaded(context=context)
        for count in (1, context - 1, context, context + 1, 3 * context):
            prompt = (PROMPT * 3)[:count]
            answer = await complete(engine, prompt, max_tokens=80, context_full="slide")
            assert len(answer.ids) == 80 or answer.finish_reason == "stop"
            assert answer.computed_tokens <= context
            accounted(engine)

    asyncio.run(run())


def test_sliding_answers_take_turns_and_are_stopped() -> None:
    async def run() -> None:
        engine = await loaded(kv_tokens=3 * CONTEXT)
        asked: dict[str, Any] = {"max_tokens": 150, "context_full": "slide", "temperature": 0.9}
        alone = [await complete(engine, PROMPT[i:], seed=i, **asked) for i in range(3)]
        await engine.reset()
        together = await asyncio.gather(
            *(complete(engine, PROMPT[i:], key=i, seed=i, **asked) for i in range(3))
        )
        assert [a.ids for a in together] == [a.ids for a in alone]
        accounted(engine)
        never = tuple((id, -100.0) for id in ready_of(engine).model.special.eos)
        forever = complete(engine, PROMPT, 9, context_full="slide", logit_bias=never)
        endless = asyncio.ensure_future(forever)
        await asyncio.sleep(0.5)
        assert engine.stop(9)
        assert (await endless).finish_reason == "cancelled"
        accounted(engine)

    asyncio.run(run())


def computed(pool: BlockPool, ids: list[int]) -> Session:
    """A session all of whose ``ids`` are in the pool."""
    session = Session(pool)
    session.prompt(ids)
    session.reserve(len(ids))
    session.num_cached = len(ids)
    session.release()
    return session


def test_moved_blocks_are_found_no_longer() -> None:
    pool = BlockPool(11)
    ids = list(range(8 * KV_BLOCK))
    session = computed(pool, ids)
    session.prompt([*ids, 1])
    assert all(src == dst for src, dst in session.slide(2, 3)), "nobody else uses them"
    assert Session(pool).prompt([*ids, 2]) == 5 * KV_BLOCK, "kept and dropped ones are as before"


def test_a_session_slides_over_shared_blocks() -> None:
    pool = BlockPool(11)
    ids = list(range(8 * KV_BLOCK))
    first, second = computed(pool, ids), Session(pool)
    assert first.prompt([*ids, 1]) == second.prompt([*ids, 2]) == len(ids)
    shared = list(first.blocks)
    pairs = first.slide(2, 3)
    assert [src for src, _ in pairs] == shared[5:]
    assert not {dst for _, dst in pairs} & set(shared), "what the other reads is not written to"
    assert first.blocks == [*shared[:2], *(dst for _, dst in pairs)]
    assert first.tokens == [*ids[: 2 * KV_BLOCK], *ids[5 * KV_BLOCK :], 1]
    with pytest.raises(NoRoomError):
        third = Session(pool)
        third.prompt([*ids, 3])
        third.reserve(9 * KV_BLOCK)
    second.release()
    third.release()
    before = pool.num_cached
    first.release()
    assert pool.num_cached == before + 2, "moved blocks are found by nobody"
    assert pool.num_free + pool.num_cached == pool.num_blocks
