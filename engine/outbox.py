"""Copies that were decided on and wait to be handed to the mover: those somebody waits for first. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from .swap.contract import Copy, Direction


class Outbox:
    """``urgent`` copies hold up a request; the others (mirroring, parking, prefetching) have time, and are rationed.

    No two copies in it touch the same block or slot, so their order is free.
    """

    def __init__(self) -> None:
        self._urgent: dict[int, Copy] = {}
        self._others: dict[Direction, dict[int, Copy]] = {direction: {} for direction in Direction}

    def __len__(self) -> int:
        return len(self._urgent) + sum(map(len, self._others.values()))

    def put(self, copies: Mapping[int, Copy], direction: Direction, *, urgent: bool) -> None:
        """Add copies, by their ids."""
        (self._urgent if urgent else self._others[direction]).update(copies)

    def hurry(self, copy_id: int) -> None:
        """Make a copy urgent; nothing happens to one that was handed over already."""
        for others in self._others.values():
            copy = others.pop(copy_id, None)
            if copy is not None:
                self._urgent[copy_id] = copy

    def take(self, ration: dict[Direction, int]) -> list[Copy]:
        """All urgent copies, and others, oldest first, as far as ``ration`` (copies each way) allows; it is used up."""
        taken = list(self._urgent.values())
        if taken:
            self._urgent.clear()
            for direction in Direction:
                ration[direction] -= [copy.direction for copy in taken].count(direction)
        for direction, others in self._others.items():
            if others and ration[direction] > 0:
                some = list(islice(others, ration[direction]))
                ration[direction] -= len(some)
                taken += [others.pop(number) for number in some]
        return taken
