"""The block pool and sessions on it: what is found is what was computed, and every block is
accounted for."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import OctavoError
from engine.kv import BlockPool
from engine.kv.usage import describe_pool, runs
from engine.ops.kv_layout import KV_BLOCK
from engine.session import Session


def computed(pool: BlockPool, ids: list[int]) -> Session:
    """A session that has computed all of ``ids`` but the last."""
    session = Session(pool)
    session.prompt(ids)
    session.reserve(len(ids))
    session.num_cached = len(ids) - 1
    return session


def test_blocks_come_in_order_and_are_found_again() -> None:
    pool = BlockPool(5)
    ids = list(range(40))
    session = computed(pool, ids)
    assert session.blocks == [0, 1, 2]
    session.release()
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 3, 0)
    assert session.prompt(ids) == 39
    assert session.blocks == [0, 1, 2]
    session.release()
    assert session.prompt([*range(36), 7, 7]) == 36, "the common beginning of an incomplete block"
    assert session.prompt([*range(20), 7, 7]) == 16, "whole blocks only, where one is complete"


def test_the_last_token_is_always_computed_again() -> None:
    pool = BlockPool(8)
    computed(pool, list(range(33))).release()
    for count in (33, 32, 17, 16, 2, 1):
        session = Session(pool)
        assert session.prompt(list(range(count))) < count
        session.release()


def test_what_others_read_is_not_written_to() -> None:
    pool = BlockPool(8)
    ids = list(range(32))
    computed(pool, [*ids, 1]).release()
    first, second = Session(pool), Session(pool)
    assert first.prompt([*ids, 2]) == 32
    assert second.prompt(ids) == 16, "its last block is in use, and would have to be written to"
    assert pool.num_shared == 1
    first.release()
    second.release()
    assert second.prompt(ids) == 31, "alone it may write to it"
    assert first.prompt([*ids, 9]) == 16, "and then nobody else finds it"


def test_an_incomplete_block_has_one_user() -> None:
    pool = BlockPool(8)
    computed(pool, list(range(10))).release()
    first, second = Session(pool), Session(pool)
    assert first.prompt(list(range(10))) == 9
    assert second.prompt(list(range(10))) == 0


def test_the_least_recently_used_goes_first() -> None:
    pool = BlockPool(4)
    old, new = list(range(33)), list(range(100, 133))
    computed(pool, [*new[:16], 0]).release()
    computed(pool, old).release()
    session = Session(pool)
    session.prompt(new[:17])  # used again
    session.release()
    assert pool.allocate(2) is not None
    assert session.prompt([*old[:16], 9]) == 16, "the end of a sequence goes before its beginning"
    session.release()
    assert session.prompt([*new[:16], 9]) == 16


def test_a_full_pool_says_so_and_releasing_twice_is_an_error() -> None:
    pool = BlockPool(2)
    session = Session(pool)
    session.reserve(32)
    with pytest.raises(OctavoError) as caught:
        session.reserve(33)
    assert caught.value.code == "prompt.too_long"
    pool.release([0, 1], ())
    with pytest.raises(ValueError, match="not in use"):
        pool.release([1], ())


def test_nothing_is_found_after_forgetting() -> None:
    pool = BlockPool(8)
    computed(pool, list(range(40))).release()
    pool.forget()
    assert pool.num_free == 8
    assert Session(pool).prompt(list(range(40))) == 0


def grown(pool: BlockPool, session: Session, num_tokens: int, refused: bool = False) -> None:
    """Blocks for ``num_tokens`` tokens, after the pool has grown if it wants to."""
    wanted = pool.wanted(session.missing(num_tokens))
    if wanted > pool.num_blocks and refused:
        pool.budget = pool.num_blocks
    elif wanted > pool.num_blocks:
        pool.grow(wanted)
    session.reserve(num_tokens)


def test_a_pool_doubles_up_to_its_budget_before_anything_cached_is_lost() -> None:
    pool = BlockPool(2, budget=7)
    sizes = []
    for i in range(7):
        session = Session(pool)
        session.prompt([i] * 16)
        grown(pool, session, 16)
        session.num_cached = 16
        session.release()
        sizes.append(pool.num_blocks)
    assert sizes == [2, 2, 4, 4, 7, 7, 7]
    assert (pool.num_cached, pool.num_free, pool.wanted(1)) == (7, 0, 7)
    assert pool.num_ends == 7
    for i in range(7):
        session = Session(pool)
        assert session.prompt([*[i] * 16, 9]) == 16
        session.release()
    grown(pool, Session(pool), 16)
    assert (pool.num_cached, pool.num_used) == (6, 1), "then what was used longest ago goes"


def test_a_pool_grows_as_far_as_it_must() -> None:
    pool = BlockPool(2, budget=100)
    assert pool.wanted(2) == 2
    assert pool.wanted(3) == 4
    assert pool.wanted(31) == 31
    assert pool.wanted(1000) == 100
    blocks = pool.allocate(1)
    assert blocks == [0]
    pool.grow(4)
    assert pool.allocate(3) == [1, 2, 3]


def test_what_is_held() -> None:
    pool = BlockPool(20)
    ids = list(range(40))
    session = computed(pool, ids)
    assert pool.tokens_held([(session.blocks, session.num_cached)]) == 39
    assert pool.num_ends == 0
    session.release()
    assert (pool.tokens_held([]), pool.num_ends) == (39, 1)
    fork = computed(pool, [*range(20), *[7] * 20])
    assert pool.tokens_held([(fork.blocks, fork.num_cached)]) == 39 + 23, "16 are shared"
    fork.release()
    assert (pool.tokens_held([]), pool.num_ends) == (62, 2)
    again = Session(pool)
    assert again.prompt([*ids, 1]) == 39
    assert pool.num_ends == 1, "the other one goes on"


def test_the_map_of_blocks() -> None:
    pool = BlockPool(8)
    ids = list(range(32))
    computed(pool, [*ids, 1, 1]).release()
    first, second = Session(pool), Session(pool)
    first.prompt([*ids, 2])
    second.prompt([*range(16), 7])
    assert pool.states == "socfffff"
    assert runs(pool.states) == "s1o1c1f5"
    assert runs("") == ""


# Runs of one token, often a block long, so that blocks are alike and end where prompts end.
RUN = st.tuples(st.integers(0, 1), st.sampled_from([1, 3, 15, 16, 16, 16, 32]))
IDS = st.lists(RUN, max_size=3).map(lambda runs: [id for id, n in runs for _ in range(n)])


class Conversations(RuleBasedStateMachine):
    """Sessions on a pool, and a memory that is written as a device would write it."""

    @initialize(blocks=st.integers(1, 3), budget=st.integers(1, 14), refused=st.integers(0, 8))
    def start(self, blocks: int, budget: int, refused: int) -> None:
        self.pool = BlockPool(blocks, budget)
        self.refused = refused  # with so many blocks, the device gives no more
        self.held: dict[int, tuple[int, ...]] = {}  # tokens up to a block's last, when it was left
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}  # by block and place
        self.open: list[Session] = []
        self.histories: list[list[int]] = [[]]

    def _reserve(self, session: Session, num_tokens: int) -> None:
        """As an answer does it; nothing cached is lost while the pool can grow."""
        pool, count = self.pool, session.missing(num_tokens)
        refused = self.refused > 0 and pool.num_blocks >= self.refused
        room = pool.num_free + (0 if refused else pool.budget - pool.num_blocks)
        cached = pool.num_cached
        try:
            grown(pool, session, num_tokens, refused)
        except OctavoError:
            assert count > room + cached
            raise
        assert pool.num_cached == cached - max(0, count - room)

    def _compute(self, session: Session, count: int) -> None:
        """Writes ``count`` more tokens."""
        for at in range(session.num_cached, session.num_cached + count):
            self._write(session, at)
        session.num_cached += count

    def _write(self, session: Session, at: int) -> None:
        """K and V depend on a token and on all before it."""
        block = session.blocks[at // KV_BLOCK]
        others = [other for other in self.open if other is not session]
        assert all(block not in other.blocks for other in others), "what another reads is written"
        self.memory[block, at % KV_BLOCK] = tuple(session.tokens[: at + 1])

    @rule(data=st.data(), more=IDS, cut=st.sampled_from([0, 0, 1, 2, 15, 16, 17, 32]))
    def prompt(self, data: Any, more: list[int], cut: int) -> None:
        """A conversation goes on, or is edited, or another one begins."""
        history = data.draw(st.sampled_from(self.histories))
        ids = [*history[: max(0, len(history) - cut)], *more] or [0]
        session = Session(self.pool)
        cached = session.prompt(ids)
        assert cached < len(ids)
        for at in range(cached):
            block = session.blocks[at // KV_BLOCK]
            found = self.memory[block, at % KV_BLOCK]
            assert found == tuple(ids[: at + 1]), "found what was not computed"
        self.open.append(session)
        try:
            self._reserve(session, len(ids))
        except OctavoError:
            self._end(session)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), share=st.floats(0, 1))
    def compute(self, data: Any, share: float) -> None:
        """A part of the prompt, or all of it."""
        session = data.draw(st.sampled_from(self.open))
        self._compute(session, int((len(session.tokens) - session.num_cached) * share))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ids=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def sample(self, data: Any, ids: list[int]) -> None:
        """The rest of the prompt, and an answer token by token."""
        session = data.draw(st.sampled_from(self.open))
        try:
            self._reserve(session, len(session.tokens) + len(ids))
        except OctavoError:
            return
        self._compute(session, len(session.tokens) - session.num_cached)
        for id in ids:
            session.append([id])
            self._write(session, len(session.tokens) - 2)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def stop(self, data: Any) -> None:
        """At any moment."""
        self._end(data.draw(st.sampled_from(self.open)))

    def _end(self, session: Session) -> None:
        self.histories.append(list(session.tokens))
        self.open.remove(session)
        for i, block in enumerate(session.blocks):
            end = min(session.num_cached, (i + 1) * KV_BLOCK)
            if end > i * KV_BLOCK:
                self.held[block] = tuple(session.tokens[:end])
        session.release()

    @rule()
    def forget(self) -> None:
        self.pool.forget()

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        assert sorted([*pool._free, *pool._cached, *pool._uses]) == list(range(pool.num_blocks))
        assert pool.num_blocks <= pool.budget
        used = {block for session in self.open for block in session.blocks}
        assert pool.num_used == len(used)
        for session in self.open:
            assert len(set(session.blocks)) == len(session.blocks)
        uses = Counter(block for session in self.open for block in session.blocks)
        assert uses == pool._uses

    @invariant()
    def the_map_is_what_is_counted(self) -> None:
        if not hasattr(self, "pool"):
            return
        kv = describe_pool(self.pool, [], 1, 1, "f16")
        runs = re.findall(r"([fcos])(\d+)", kv["map"])
        assert "".join(letter + count for letter, count in runs) == kv["map"]
        states = [letter for letter, count in runs for _ in range(int(count))]
        counts = Counter(states)
        assert len(states) == kv["num_blocks"]
        assert counts["f"] == kv["free_blocks"]
        assert counts["c"] == kv["cached_blocks"]
        assert counts["s"] == kv["shared_blocks"]
        assert counts["o"] + counts["s"] == kv["used_blocks"]
        for session in self.open:
            assert all(states[block] in "os" for block in session.blocks)
        assert all(states[block] == "c" for block in self.pool._cached)

    @invariant()
    def what_is_held_is_known(self) -> None:
        """Tokens and conversations, by what was in the blocks when they were left."""
        if not hasattr(self, "pool"):
            return
        cached = {block: self.held[block] for block in self.pool._cached}
        tokens = {block: (len(ids) - 1) % KV_BLOCK + 1 for block, ids in cached.items()}
        for session in self.open:
            for at in range(session.num_cached):
                block = session.blocks[at // KV_BLOCK]
                tokens[block] = max(tokens.get(block, 0), at % KV_BLOCK + 1)
        sequences = [(session.blocks, session.num_cached) for session in self.open]
        assert self.pool.tokens_held(sequences) == sum(tokens.values())
        starts = {ids[: (len(ids) - 1) // KV_BLOCK * KV_BLOCK] for ids in cached.values()}
        assert self.pool.num_ends == sum(ids not in starts for ids in cached.values())


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
