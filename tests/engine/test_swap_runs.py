"""How copies are grouped, cut and joined to runs. Pure."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.swap.contract import Copy, Direction
from kvtrace.engine.swap.runs import conflict_free, cut, flat_runs, slot_runs

from .swap_bench import IN, OUT, copies_of

steps = st.lists(st.tuples(st.sampled_from(Direction), st.integers(0, 9), st.integers(0, 9)), max_size=30)


@given(steps)
def test_groups_hold_no_conflict_and_keep_the_order_of_conflicting_copies(
    batch: list[tuple[Direction, int, int]],
) -> None:
    copies = copies_of(*batch)
    groups = conflict_free(copies)
    assert sorted(copy.id for group in groups for copy in group) == [copy.id for copy in copies]
    place = {copy.id: index for index, group in enumerate(groups) for copy in group}
    for group in groups:
        assert len({copy.direction for copy in group}) == 1
        assert len({copy.device_block for copy in group}) == len({copy.host_slot for copy in group}) == len(group)
    for index, before in enumerate(copies):
        for after in copies[index + 1 :]:
            if before.device_block == after.device_block or before.host_slot == after.host_slot:
                assert place[before.id] < place[after.id]


@given(st.permutations(range(12)), st.permutations(range(12)), st.integers(0, 12))
def test_runs_cover_every_copy_once(blocks: list[int], slots: list[int], count: int) -> None:
    copies = sorted(
        (Copy(index, OUT, blocks[index], slots[index]) for index in range(count)), key=lambda c: c.host_slot
    )
    runs = slot_runs(copies)
    assert [slot + k for slot, length in runs for k in range(length)] == sorted(slots[:count])
    assert all(after > before + length for (before, length), (after, _) in itertools.pairwise(runs))
    flat = flat_runs(copies)
    covered = [(first.device_block + k, first.host_slot + k) for first, length in flat for k in range(length)]
    assert covered == [(copy.device_block, copy.host_slot) for copy in copies]


@given(st.permutations(range(40)), st.integers(0, 40), st.integers(1, 12), st.booleans())
def test_pieces_cover_every_copy_once_in_the_order_of_slots(
    slots: list[int], count: int, most: int, busy: bool
) -> None:
    pieces = cut([Copy(index, IN, index, slots[index]) for index in range(count)], most, busy=busy)
    assert [copy.host_slot for piece in pieces for copy in piece] == sorted(slots[:count])
    assert all(0 < len(piece) <= most for piece in pieces)
    assert len(pieces) <= (-(-count // most) if busy else count // most + 5)
