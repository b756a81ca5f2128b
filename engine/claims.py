"""Which agent holds which chain of blocks, and in what phase: this orders reclaiming and host eviction. Torch-free."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from .blocks import Piece


class Phase(StrEnum):
    """How soon an agent's KV is needed again."""

    ACTIVE = "active"  # has a request, or its tool just ended
    WAITING = "waiting"  # waits for a tool: gives way on the device, is kept on the host
    RESTING = "resting"  # its turn is over: plain least-recently-used in both tiers


@dataclass(slots=True)
class Holding:
    """An agent's last context: the keys of its full blocks in order, and its tail."""

    keys: tuple[bytes, ...] = ()
    tail: Piece | None = None
    phase: Phase = Phase.RESTING


class Claims:
    """Holdings by agent, and per key how many holdings of each phase name it."""

    def __init__(self) -> None:
        self.holdings: dict[str, Holding] = {}
        self._counts: dict[Phase, Counter[bytes]] = {phase: Counter() for phase in Phase}

    def of(self, agent: str) -> Holding | None:
        """The holding of ``agent``, if it has one."""
        return self.holdings.get(agent)

    def hold(self, agent: str, keys: tuple[bytes, ...], tail: Piece | None, phase: Phase) -> None:
        """Replace what ``agent`` holds."""
        self.drop(agent)
        self.holdings[agent] = Holding(keys, tail, phase)
        self._counts[phase].update(keys)

    def set_phase(self, agent: str, phase: Phase) -> None:
        """Move ``agent``'s holding to ``phase``; nothing happens to an agent without one."""
        holding = self.holdings.get(agent)
        if holding is not None and holding.phase is not phase:
            self._uncount(holding)
            holding.phase = phase
            self._counts[phase].update(holding.keys)

    def drop(self, agent: str) -> None:
        """Forget what ``agent`` holds."""
        holding = self.holdings.pop(agent, None)
        if holding is not None:
            self._uncount(holding)

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
        holding = self.holdings.get(tail.agent)
        return holding.phase if holding is not None and holding.tail is tail else Phase.RESTING

    def _uncount(self, holding: Holding) -> None:
        counts = self._counts[holding.phase]
        for key in holding.keys:
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
