"""Turns: in order, one at a time, and none is lost."""

from __future__ import annotations

import asyncio

from engine.turns import Turns


def test_turns_come_in_the_order_of_asking() -> None:
    async def run() -> None:
        turns, order = Turns(), list[int]()

        async def one(i: int) -> None:
            for _ in range(3):
                await turns.take()
                order.append(i)
                await asyncio.sleep(0)
                turns.give()

        await asyncio.gather(*map(one, range(3)))
        assert order == [0, 1, 2] * 3
        assert not turns.wanted

    asyncio.run(run())


def test_who_gives_up_waiting_loses_no_turn() -> None:
    async def run(given: bool) -> None:
        turns = Turns()
        await turns.take()
        waiting = asyncio.ensure_future(turns.take())
        await asyncio.sleep(0)
        assert turns.wanted
        if given:
            turns.give()  # and in the same moment
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not turns.wanted
        if not given:
            turns.give()
        await asyncio.wait_for(turns.take(), 1)

    for given in (False, True):
        asyncio.run(run(given))
