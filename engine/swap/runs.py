"""Which copies go together: pure functions that both movers use. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter

from .contract import Copy, CopyDone


def continues(before: Copy, after: Copy) -> bool:
    """Whether ``after`` goes on where ``before`` ends, on both sides, so that the two are one copy of both lengths."""
    return (
        after.direction is before.direction
        and after.device_block == before.device_block + 1
        and after.host_slot == before.host_slot + 1
    )


def conflict_free(copies: Sequence[Copy]) -> list[list[Copy]]:
    """Cut ``copies`` in order into groups of one direction in which no block and no slot occurs twice.

    Within a group the order is of no importance. Between neighbouring groups it matters only where they share a block
    or a slot: a group is as long as it can be, and directions that alternate without conflict make one group each.
    """
    groups: list[list[Copy]] = []
    open_groups: dict[str, list[Copy]] = {}
    blocks: set[int] = set()
    slots: set[int] = set()
    for copy in copies:
        if copy.device_block in blocks or copy.host_slot in slots:
            open_groups = {}
            blocks, slots = set(), set()
        group = open_groups.get(copy.direction)
        if group is None:
            group = open_groups[copy.direction] = []
            groups.append(group)
        group.append(copy)
        blocks.add(copy.device_block)
        slots.add(copy.host_slot)
    return groups


def cut(copies: Sequence[Copy], most: int, *, busy: bool = False, by_slot: bool = True) -> list[Sequence[Copy]]:
    """Sort copies by host slot, unless order does not matter, and cut them into pieces of at most ``most``.

    Where there are several, the first ones are shorter, so that the link has something to do while the next is prepared,
    and the last one, so that little is left to report when the last byte has arrived; unless the link is ``busy`` with
    what came before: then they are as few as can be, and about equally long.
    """
    ordered = sorted(copies, key=attrgetter("host_slot")) if by_slot else copies
    if len(ordered) <= most:
        return [ordered] if ordered else []
    if busy:
        count = -(-len(ordered) // most)
        ends = [len(ordered) * index // count for index in range(count + 1)]
        return [ordered[start:end] for start, end in pairwise(ends)]
    size = last = max(1, most // 4)
    pieces: list[Sequence[Copy]] = []
    at, end = 0, len(ordered) - last
    while at < end:
        pieces.append(ordered[at : min(at + size, end)])
        at, size = at + size, min(most, 2 * size)
    return [*pieces, ordered[end:]]


def slot_runs(copies: Iterable[Copy]) -> list[tuple[int, int]]:
    """The first slot and the length of each run of neighbouring host slots; ``copies`` in slot order."""
    runs: list[tuple[int, int]] = []
    first = after = -1
    for copy in copies:
        if copy.host_slot != after:
            if after >= 0:
                runs.append((first, after - first))
            first = copy.host_slot
        after = copy.host_slot + 1
    return [*runs, (first, after - first)] if after >= 0 else runs


def flat_runs(copies: Sequence[Copy]) -> list[tuple[Copy, int]]:
    """The first copy and the length of each stretch that is contiguous on both sides; ``copies`` in slot order."""
    runs: list[tuple[Copy, int]] = []
    for index, copy in enumerate(copies):
        if index and continues(copies[index - 1], copy):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((copy, 1))
    return runs


def share(run: Sequence[Copy], started_ns: int, ended_ns: int) -> list[CopyDone]:
    """Split a run's time evenly over its copies, so that their durations add up to what was measured."""
    at = [started_ns + (ended_ns - started_ns) * index // len(run) for index in range(len(run) + 1)]
    return list(map(CopyDone, run, at, at[1:]))
