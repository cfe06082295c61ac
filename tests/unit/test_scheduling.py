"""Step sizes and the room of a session, without any device."""

from __future__ import annotations

import pytest

from engine.errors import OctavoError
from engine.kv import BlockPool
from engine.scheduler import Decode, Pace, Prefill, Scheduler
from engine.session import Session


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
