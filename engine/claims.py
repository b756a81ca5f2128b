"""Which agent holds which chain of blocks, and in what phase: this orders reclaiming and host eviction. Torch-free.

The owner of a chain is an agent or, with the request's id besides, one of its requests that was preempted: what an
agent with several requests at once holds is what the last one left, and the others must find their own again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .blocks import Owner, Piece
from .findings import Residency

_STALE: Final = 512
"""So many keys that nobody holds any more are looked at again before anybody asks."""


class Phase(StrEnum):
    """How soon an agent's KV is needed again."""

    ACTIVE = "active"  # has a request, or its tool just ended
    WAITING = "waiting"  # waits for a tool: gives way on the device, is kept on the host
    RESTING = "resting"  # its turn is over: plain least-recently-used in both tiers


@dataclass(slots=True, eq=False)
class Holding:
    """A context: the keys of its full blocks in order, and its tail.

    ``device`` and ``host`` count the full blocks that are there, ``alive`` those that are in either tier.
    """

    keys: tuple[bytes, ...] = ()
    tail: Piece | None = None
    phase: Phase = Phase.RESTING
    device: int = 0
    host: int = 0
    alive: int = 0

    def residency(self, block_tokens: int) -> Residency:
        """Where it is, tail included."""
        tail = self.tail
        on_device, on_host = tail is not None and tail.device is not None, tail is not None and tail.host is not None
        return Residency(
            blocks=len(self.keys) + (tail is not None),
            device_blocks=self.device + on_device,
            host_blocks=self.host + on_host,
            kept_tokens=self.alive * block_tokens + (len(tail.tokens) if tail is not None and tail.alive else 0),
        )


class Claims:
    """Holdings by owner, and per key how many holdings of each phase name it.

    ``index`` finds the piece of a key. ``version`` grows with every change. Everything is kept up by what changed: an agent
    holds hundreds of keys, and is asked about in every step.
    """

    def __init__(self, index: Mapping[bytes, Piece]) -> None:
        self.version = 0
        self.holdings: dict[Owner, Holding] = {}
        self._index = index
        self._counts: dict[Phase, Counter[bytes]] = {phase: Counter() for phase in Phase}
        self._active, self._waiting, self._resting = (self._counts[phase] for phase in Phase)
        self._holders: dict[bytes | None, list[Holding]] = {}  # None, the key of tails, is never there
        self._stale: dict[Owner, None] = {}
        self._loosened: list[bytes] = []

    def of(self, owner: Owner) -> Holding | None:
        """The holding of ``owner``, if it has one."""
        return self.holdings.get(owner)

    def device_blocks(self, owner: Owner) -> int:
        """How many blocks of ``owner``'s last context are on the device."""
        holding = self.holdings.get(owner)
        if holding is None:
            return 0
        return holding.device + (holding.tail is not None and holding.tail.device is not None)

    def has_blocks(self, owner: Owner) -> bool:
        """Whether either tier has anything of ``owner``'s last context."""
        holding = self.holdings.get(owner)
        return holding is not None and (holding.alive > 0 or (holding.tail is not None and holding.tail.alive))

    def hold(self, owner: Owner, keys: tuple[bytes, ...], tail: Piece | None, phase: Phase) -> None:
        """Replace what ``owner`` holds; what its new context has in common with its last one costs nothing."""
        holding = self.holdings.get(owner)
        if holding is None:
            holding = self.holdings[owner] = Holding(phase=phase)
        else:
            self.set_phase(owner, phase)
        self.version += 1
        shared = _shared(holding.keys, keys)
        self._let_go(holding, holding.keys[shared:])
        self._take_up(holding, keys[shared:])
        holding.keys, holding.tail = keys, tail
        self._stale[owner] = None

    def set_phase(self, owner: Owner, phase: Phase) -> None:
        """Move ``owner``'s holding to ``phase``; nothing happens to one without."""
        holding = self.holdings.get(owner)
        if holding is not None and holding.phase is not phase:
            self.version += 1
            self._uncount(holding.phase, holding.keys)
            self._counts[phase].update(holding.keys)
            if Phase.RESTING in (holding.phase, phase):
                self._stale[owner] = None
            holding.phase = phase

    def drop(self, owner: Owner) -> None:
        """Forget what ``owner`` holds."""
        holding = self.holdings.pop(owner, None)
        self._stale.pop(owner, None)
        if holding is not None:
            self.version += 1
            self._let_go(holding, holding.keys)

    def moved(self, pieces: Iterable[Piece], change: int) -> None:
        """Note that ``pieces`` came to the device (1) or left it (-1)."""
        holders = self._holders
        for piece in pieces:
            for holding in holders.get(piece.key, ()):
                holding.device += change

    def moved_on_host(self, piece: Piece, change: int) -> None:
        """Note that ``piece`` came to the host (1) or left it (-1)."""
        for holding in self._holders.get(piece.key, ()):
            holding.host += change

    def lives(self, key: bytes, change: int) -> None:
        """Note that the index has a piece of this key from now on (1), or has it no more (-1)."""
        for holding in self._holders.get(key, ()):
            holding.alive += change

    def take_stale(self) -> Iterable[Piece]:
        """The pieces that are :meth:`kept`, or not, perhaps otherwise than at the last call."""
        owners, loosened = self._stale, self._loosened
        if not owners and not loosened:
            return ()
        self._stale, self._loosened = {}, []
        held = [self.holdings[owner] for owner in owners]
        keys = dict.fromkeys(loosened)
        for holding in held:
            keys.update(dict.fromkeys(holding.keys))
        found = [piece for piece in map(self._index.get, keys) if piece is not None]
        return found + [holding.tail for holding in held if holding.tail is not None]

    @property
    def much_stale(self) -> bool:
        """Whether so much is stale that :meth:`take_stale` should be called though nobody needs it."""
        return len(self._loosened) > _STALE

    def hot(self, piece: Piece) -> bool:
        """Whether an agent that does not wait for a tool holds ``piece``."""
        key = piece.key
        if key is None:
            return self._phase(piece) is not Phase.WAITING
        return key in self._active or key in self._resting

    def cold(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of ``keys`` whose pieces are not :meth:`hot`."""
        active, resting = self._active, self._resting
        return [key for key in keys if key not in active and key not in resting]

    def kept(self, piece: Piece) -> bool:
        """Whether an agent in the middle of its work holds ``piece``, so that losing it would cost a recompute soon."""
        key = piece.key
        if key is None:
            return self._phase(piece) is not Phase.RESTING
        return key in self._waiting or key in self._active

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

    def _take_up(self, holding: Holding, keys: tuple[bytes, ...]) -> None:
        self._counts[holding.phase].update(keys)
        for key in keys:
            self._holders.setdefault(key, []).append(holding)
            self._count(holding, self._index.get(key), 1)

    def _let_go(self, holding: Holding, keys: tuple[bytes, ...]) -> None:
        self._uncount(holding.phase, keys)
        for key in keys:
            holders = self._holders[key]
            holders.remove(holding)
            if not holders:
                del self._holders[key]
            self._count(holding, self._index.get(key), -1)
        self._loosened += keys

    def _count(self, holding: Holding, piece: Piece | None, change: int) -> None:
        if piece is not None:
            holding.alive += change
            holding.device += change * (piece.device is not None)
            holding.host += change * (piece.host is not None)

    def _uncount(self, phase: Phase, keys: tuple[bytes, ...]) -> None:
        counts = self._counts[phase]
        for key in keys:
            left = counts.pop(key) - 1
            if left:
                counts[key] = left


def _shared(ones: tuple[bytes, ...], others: tuple[bytes, ...]) -> int:
    """How many leading keys two chains have in common. Equal keys have equal chains before them."""
    low, high = 0, min(len(ones), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if ones[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
