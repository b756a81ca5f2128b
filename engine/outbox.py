"""Copies that were decided on and wait to be handed to the mover: those somebody waits for first. Torch-free."""

from __future__ import annotations

from .swap.contract import Copy, Direction


class Outbox:
    """``urgent`` copies hold up a request; the others (mirroring, parking, prefetching) have time, and are rationed.

    No two copies in it touch the same block or slot, so their order is free.
    """

    def __init__(self) -> None:
        self._urgent: dict[int, Copy] = {}
        self._others: dict[int, Copy] = {}

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def put(self, copy: Copy, *, urgent: bool) -> None:
        """Add a copy."""
        (self._urgent if urgent else self._others)[copy.id] = copy

    def hurry(self, copy_id: int) -> None:
        """Make a copy urgent; nothing happens to one that was handed over already."""
        copy = self._others.pop(copy_id, None)
        if copy is not None:
            self._urgent[copy_id] = copy

    def take(self, ration: dict[Direction, int]) -> list[Copy]:
        """All urgent copies, and others, oldest first, as far as ``ration`` (copies each way) allows; it is used up."""
        taken = list(self._urgent.values())
        self._urgent.clear()
        for copy in taken:
            ration[copy.direction] -= 1
        if self._others and any(left > 0 for left in ration.values()):
            for copy in list(self._others.values()):
                if ration[copy.direction] > 0:
                    ration[copy.direction] -= 1
                    taken.append(self._others.pop(copy.id))
        return taken
