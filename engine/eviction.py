"""Whose host slot is emptied when another piece needs one. Torch-free.

First a piece that no working agent holds, then, where room must be had, one that is on the device as well, then whatever
``coldest`` names. The first two are kept in lists as things change: a search through a host full of waiting agents' KV for
every block that fills would cost more than computing it. What agents hold changes more often than anybody needs a slot, so
that is looked at when somebody does. A search for the coldest that found nothing is not repeated before something has
changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from typing import Final

from .blocks import DevicePool, HostPool, Owner, Piece
from .claims import Claims

_REMEMBERED: Final = 64


class HostEviction:
    """Searches ``host``; ``claims`` knows whether a working agent holds a piece.

    ``loose``: slots that can be emptied at once, nobody at work holds them; ``redundant``: those of pieces that are on the
    device as well. Both oldest first. ``in_use``: loose but for a request that runs on their pieces, such as those it fills
    itself; they are loose again when it has :meth:`given_back` their blocks.
    """

    def __init__(self, device: DevicePool, host: HostPool, claims: Claims) -> None:
        self.coldest: Callable[[Piece, Set[int]], Piece | None] = lambda wanted, spare: None
        self._device = device
        self._host = host
        self._claims = claims
        self._kept = claims.kept
        self.loose: OrderedDict[int, None] = OrderedDict()
        self.redundant: OrderedDict[int, None] = OrderedDict()
        self.in_use: set[int] = set()
        self._barren: dict[Owner, tuple[int, int, int]] = {}

    def victim(self, wanted: Piece, spare: Set[int], *, must: bool) -> Piece | None:
        """The piece that gives its slot to ``wanted``; none of the slots in ``spare``, and ``None`` where none may."""
        self.refresh()
        found = self._first_loose(spare)
        if found is None and must:
            slots = self._host.slots
            there = next((number for number in self.redundant if number not in spare), None)
            found = self._coldest(wanted, spare) if there is None else slots[there].piece
        return found

    def refresh(self) -> None:
        """Look again at the pieces that somebody holds, or holds no more, since the last time."""
        for piece in self._claims.take_stale():
            if piece.host is not None:
                self.review(piece)

    def review(self, piece: Piece) -> None:
        """Look again at a piece that the host has: it came or went, or somebody holds it or holds it no more."""
        number, loose, redundant = piece.host, self.loose, self.redundant
        assert number is not None
        self.in_use.discard(number)
        if not self._host.ready(number):
            loose.pop(number, None)
            redundant.pop(number, None)
            return
        # A number that is there already keeps its place.
        if self._kept(piece):
            loose.pop(number, None)
        else:
            loose[number] = None
        if piece.device is None:
            redundant.pop(number, None)
        else:
            redundant[number] = None

    def given_back(self, pieces: Iterable[Piece | None]) -> None:
        """A request runs on the blocks of these pieces no more."""
        for piece in pieces if self.in_use else ():
            if piece is not None and piece.host in self.in_use:
                self.review(piece)
        if self._claims.much_stale:
            self.refresh()

    def forget(self, number: int) -> None:
        """A slot is empty."""
        self.in_use.discard(number)
        self.loose.pop(number, None)
        self.redundant.pop(number, None)

    def _first_loose(self, spare: Set[int]) -> Piece | None:
        used, found = [], None
        for number in self.loose:
            piece = self._host.slots[number].piece
            assert piece is not None
            if piece.device is not None and self._device.blocks[piece.device].refs:
                used.append(number)
            elif number not in spare:
                found = piece
                break
        for number in used:
            del self.loose[number]
        self.in_use.update(used)
        return found

    def _coldest(self, wanted: Piece, spare: Set[int]) -> Piece | None:
        now = (self._claims.version, self._device.dropped, self._host.settled)
        if self._barren.get(wanted.owner) == now:
            return None
        found = self.coldest(wanted, spare)
        if found is None:
            if len(self._barren) > _REMEMBERED:
                self._barren.clear()
            self._barren[wanted.owner] = now
        return found
