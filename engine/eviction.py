"""Whose host slot is emptied when another piece needs one. Torch-free.

First a piece that no working agent holds, then, where room must be had, one that is on the device as well, then whatever
``coldest`` names. The first two are kept in lists as things change: a search through a host full of waiting agents' KV for
every block that fills would cost more than computing it. A search for the coldest that found nothing is not repeated before
something has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Set
from typing import Final

from .blocks import DevicePool, HostPool, Owner, Piece

_REMEMBERED: Final = 64


class HostEviction:
    """Searches ``host``; ``kept`` says whether a working agent holds a piece, ``version`` changes when that may.

    ``loose``: slots that can be emptied at once, nobody at work holds them; ``redundant``: those of pieces that are on the
    device as well. Both oldest first.
    """

    def __init__(
        self, device: DevicePool, host: HostPool, kept: Callable[[Piece], bool], version: Callable[[], int]
    ) -> None:
        self.coldest: Callable[[Piece, Set[int]], Piece | None] = lambda wanted, spare: None
        self._device = device
        self._host = host
        self._kept = kept
        self._version = version
        self.loose: OrderedDict[int, None] = OrderedDict()
        self.redundant: OrderedDict[int, None] = OrderedDict()
        self._barren: dict[Owner, tuple[int, int, int]] = {}

    def victim(self, wanted: Piece, spare: Set[int], *, must: bool) -> Piece | None:
        """The piece that gives its slot to ``wanted``; none of the slots in ``spare``, and ``None`` where none may."""
        found = self._first(self.loose, spare, lambda piece: not self._referenced(piece))
        if found is None and must:
            found = self._first(self.redundant, spare, lambda piece: True) or self._coldest(wanted, spare)
        return found

    def review(self, piece: Piece) -> None:
        """Look again at a piece that the host has: somebody holds it or holds it no more, or it came or went."""
        number = piece.host
        assert number is not None
        ready = number in self._host.ready
        _put(self.loose, number, there=ready and not self._kept(piece))
        _put(self.redundant, number, there=ready and piece.device is not None)

    def forget(self, number: int) -> None:
        """A slot is empty."""
        self.loose.pop(number, None)
        self.redundant.pop(number, None)

    def _first(self, numbers: OrderedDict[int, None], spare: Set[int], fits: Callable[[Piece], bool]) -> Piece | None:
        for number in numbers:
            piece = self._host.slots[number].piece
            if piece is not None and number not in spare and fits(piece):
                return piece
        return None

    def _coldest(self, wanted: Piece, spare: Set[int]) -> Piece | None:
        now = (self._version(), self._device.dropped, self._host.settled)
        if self._barren.get(wanted.owner) == now:
            return None
        found = self.coldest(wanted, spare)
        if found is None:
            if len(self._barren) > _REMEMBERED:
                self._barren.clear()
            self._barren[wanted.owner] = now
        return found

    def _referenced(self, piece: Piece) -> bool:
        return piece.device is not None and self._device.blocks[piece.device].refs > 0


def _put(numbers: OrderedDict[int, None], number: int, *, there: bool) -> None:
    if not there:
        numbers.pop(number, None)
    elif number not in numbers:
        numbers[number] = None
