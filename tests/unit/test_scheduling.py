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
    pace.measured(8, 0.004)  # 100 would fit, but it grows at most twofold
    assert pace.size == 16
    pace.measured(16, 0.008)
    assert pace.size == 32
    pace.measured(32, 1.6)
    assert pace.size == 8
    for _ in range(9):
        pace.measured(pace.size, pace.size * 1e-5)
    assert pace.size == 256


def test_prefill_in_chunks_then_decode_in_bursts() -> None:
    scheduler = Scheduler(chunk=16, context=64)
    session = Session(BlockPool(4))
    session.prompt(list(range(20)))
    assert scheduler.next_prefill(session) == Prefill(0, 8, False)
    session.num_cached = 8
    scheduler.prefill_pace.measured(8, 0.001)
    assert scheduler.next_prefill(session) == Prefill(8, 12, True)
    assert scheduler.next_decode(20, 5) == Decode(20, 1)
    assert scheduler.depth == 1
    scheduler.decode_pace.measured(1, 0.001)
    scheduler.decode_pace.measured(2, 0.001)
    assert scheduler.depth == 2
    assert scheduler.next_decode(20, 3) == Decode(20, 3)
    assert scheduler.next_decode(62, 30) == Decode(62, 2)
    assert scheduler.next_decode(64, 30) is None
    assert scheduler.next_decode(20, 0) is None
