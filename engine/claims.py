"""Which agent holds which chain of blocks, and in what phase: this orders reclaiming and host eviction. Torch-free.

The owner of a chain is an agent or, with the request's id besides, one of its requests that was preempted: what an
agent with several requests at once holds is what the last one left, and the others must find their own again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from .blocks import Owner, Piece


class Phase(StrEnum):
    """How soon an agent's KV is needed again."""

    ACTIVE = "active"  # has a request, or its tool just ended
    WAITING = "waiting"  # waits for a tool: gives way on the device, is kept on the host
    RESTING = "resting"  # its turn is over: plain least-recently-used in both tiers


@dataclass(slots=True)
class Holding:
    """A context: the keys of its full blocks in order, and its tail."""

    keys: tuple[bytes, ...] = ()
    tail: Piece | None = None
    phase: Phase = Phase.RESTING


class Claims:
    """Holdings by owner, and per key how many holdings of each phase name it.

    ``version`` grows with every change. ``review`` hears of the keys and the tail that are :meth:`kept`, or not, perhaps
    otherwise than before.
    """

    def __init__(self) -> None:
        self.version = 0
        self.holdings: dict[Owner, Holding] = {}
        self._counts: dict[Phase, Counter[bytes]] = {phase: Counter() for phase in Phase}
        self._owners: dict[bytes, set[Owner]] = {}
        self._moved: set[Owner] = set()
        self.review: Callable[[Iterable[bytes], Piece | None], None] = lambda keys, tail: None

    def of(self, owner: Owner) -> Holding | None:
        """The holding of ``owner``, if it has one."""
        return self.holdings.get(owner)

    def hold(self, owner: Owner, keys: tuple[bytes, ...], tail: Piece | None, phase: Phase) -> None:
        """Replace what ``owner`` holds."""
        self.drop(owner)
        self.version += 1
        self.holdings[owner] = Holding(keys, tail, phase)
        self._counts[phase].update(keys)
        for key in keys:
            self._owners.setdefault(key, set()).add(owner)
        self._moved.add(owner)
        self.review(keys, tail)

    def moved(self, piece: Piece) -> None:
        """Note that ``piece`` came to a tier or left one."""
        if piece.key is None:
            self._moved.add(piece.owner)
        elif piece.key in self._owners:
            self._moved |= self._owners[piece.key]

    def changed(self, owner: Owner) -> None:
        """Note that what ``owner`` holds is not what it was."""
        self.version += 1
        self._moved.add(owner)

    def take_moved(self, owner: Owner) -> bool:
        """Whether anything that ``owner`` holds came to a tier or left one since the last call."""
        found = owner in self._moved
        self._moved.discard(owner)
        return found

    def set_phase(self, owner: Owner, phase: Phase) -> None:
        """Move ``owner``'s holding to ``phase``; nothing happens to one without."""
        holding = self.holdings.get(owner)
        if holding is not None and holding.phase is not phase:
            self.version += 1
            self._uncount(holding)
            before, holding.phase = holding.phase, phase
            self._counts[phase].update(holding.keys)
            if Phase.RESTING in (before, phase):
                self.review(holding.keys, holding.tail)

    def drop(self, owner: Owner) -> None:
        """Forget what ``owner`` holds."""
        holding = self.holdings.pop(owner, None)
        self._moved.discard(owner)
        if holding is None:
            return
        self.version += 1
        self._uncount(holding)
        for key in holding.keys:
            owners = self._owners[key]
            owners.discard(owner)
            if not owners:
                del self._owners[key]
        if holding.phase is not Phase.RESTING:
            self.review(holding.keys, holding.tail)

    def hot(self, piece: Piece) -> bool:
        """Whether an agent that does not wait for a tool holds ``piece``."""
        if piece.key is None:
            return self._phase(piece) is not Phase.WAITING
        return self._counts[Phase.ACTIVE][piece.key] > 0 or self._counts[Phase.RESTING][piece.key] > 0

    def kept(self, piece: Piece) -> bool:
        """Whether an agent in the middle of its work holds ``piece``, so that losing it would cost a recompute soon."""
        if piece.key is None:
            return self._phase(piece) is not Phase.RESTING
        return self._counts[Phase.ACTIVE][piece.key] > 0 or self._counts[Phase.WAITING][piece.key] > 0

    def recount(self) -> dict[Phase, Counter[bytes]]:
        """The counts as the holdings give them; the integrity check compares."""
        counts: dict[Phase, Counter[bytes]] = {phase: Counter() for phase in Phase}
        for holding in self.holdings.values():
            counts[holding.phase].update(holding.keys)
        return counts

    def counted(self) -> dict[Phase, Counter[bytes]]:
        """The counts as they were kept up."""
        return self._counts

    def _phase(self, tail: Piece) -> Phase:
        holding = self.holdings.get(tail.owner)
        return holding.phase if holding is not None and holding.tail is tail else Phase.RESTING

    def _uncount(self, holding: Holding) -> None:
        counts = self._counts[holding.phase]
        for key in holding.keys:
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
