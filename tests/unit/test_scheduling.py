"""Blocks, sessions and step sizes, without any device: exact block ids and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import OctavoError
from engine.kv import BlockPool
from engine.scheduler import Decode, Pace, Prefill, Scheduler
from engine.session import Session


def test_blocks_come_in_order_and_the_last_freed_first() -> None:
    pool = BlockPool(5)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(3) is None
    assert pool.num_free == 2
    pool.free([0, 1])
    assert pool.allocate(3) == [0, 1, 3]
    with pytest.raises(ValueError, match="not in use"):
        pool.free([4])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_every_block_is_free_or_owned_once(steps: list[tuple[bool, int]]) -> None:
    pool, owned = BlockPool(20), []
    for take, count in steps:
        if take:
            got = pool.allocate(count)
            assert (got is None) == (count > 20 - len(owned))
            owned += got or []
        else:
            pool.free(owned[:count])
            owned = owned[count:]
        assert len(set(owned)) == len(owned)
        assert pool.num_free == 20 - len(owned)


def test_a_session_keeps_the_common_beginning() -> None:
    session = Session(BlockPool(8))
    assert session.prompt([1, 2, 3, 4]) == 0
    assert session.reserve(4) == [0]
    session.num_cached = 4
    session.append([5])
    assert (session.tokens, session.num_cached) == ([1, 2, 3, 4, 5], 4)
    assert session.prompt([1, 2, 3, 4, 5, 6, 7]) == 4
    assert session.prompt([1, 2, 9, 4]) == 2
    assert session.reserve(17) == [1]
    assert session.reserve(17) == []
    session.reset()
    assert (session.tokens, session.num_cached, session.blocks) == ([], 0, [])


def test_the_last_token_is_always_computed_again() -> None:
    session = Session(BlockPool(8))
    session.prompt([1, 2, 3])
    session.num_cached = 3
    assert session.prompt([1, 2, 3]) == 2
    assert session.prompt([1, 2]) == 1
    assert session.prompt([1]) == 0


def test_a_full_pool_says_so() -> None:
    session = Session(BlockPool(2))
    session.reserve(32)
    with pytest.raises(OctavoError) as caught:
        session.reserve(33)
    assert caught.value.code == "prompt.too_long"


def test_pace_finds_the_size_that_fits() -> None:
    pace = Pace(0.05, 8, 256)
    assert pace.size == 8
    pace.measured(8, 0.004)
    assert pace.size == 100
    pace.measured(3, 0.004)  # a short step says little: 37 would fit by it
    assert pace.size == 100
    pace.measured(100, 0.04)
    assert pace.size == 125
    pace.measured(125, 0.1)
    assert pace.size == 62
    pace.measured(20, 0.1)  # short and too slow all the same
    assert pace.size == 10
    pace.measured(1, 9.0)  # slow, but not by its size
    assert pace.size == 10
    pace.measured(10, 9.0)
    assert pace.size == 8
    pace.measured(8, 1e-5)
    assert pace.size == 256


def test_prefill_in_chunks_then_decode_in_bursts() -> None:
    scheduler = Scheduler(chunk=16, context=64)
    session = Session(BlockPool(4))
    session.prompt(list(range(20)))
    assert scheduler.next_prefill(session) == Prefill(0, 4, False)
    session.num_cached = 4
    scheduler.prefill_pace.measured(4, 0.001)
    assert scheduler.next_prefill(session) == Prefill(4, 16, True)
    assert scheduler.next_decode(20, 5) == Decode(20, 1)
    assert scheduler.depth == 1
    scheduler.decode_pace.measured(1, 0.001)
    assert scheduler.depth == 2
    assert scheduler.next_decode(20, 3) == Decode(20, 3)
    assert scheduler.next_decode(62, 30) == Decode(62, 2)
    assert scheduler.next_decode(64, 30) is None
    assert scheduler.next_decode(20, 0) is None
