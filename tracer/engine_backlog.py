"""Signals on their way to the engine: encoded, in order, and never more than so many."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from .otlp_proto import encode_signal
from .signals import Signal, ToolEnded, ToolStarted

LIMIT: Final = 4096  # signals that wait; as many open starts are remembered

_Call = tuple[str, str]


class Backlog:
    """Waiting signals, oldest first.

    One thread's alone. An end is sent as a complete span, so the start of every open call is remembered; where it is
    not known (the call began before anybody listened), the span has no length.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: OrderedDict[tuple[_Call, bool], bytes] = OrderedDict()
        self._starts: OrderedDict[_Call, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, signal: Signal) -> int:
        """Append a signal and return how many had to go for it."""
        call = (signal.trace_id, signal.span_id)
        if isinstance(signal, ToolStarted):
            start_ns = self._starts[call] = signal.time_unix_ns
            if len(self._starts) > self._limit:
                self._starts.popitem(last=False)
        else:
            start_ns = self._starts.pop(call, signal.time_unix_ns)
        self._waiting[call, isinstance(signal, ToolEnded)] = encode_signal(signal, start_ns)
        if len(self._waiting) <= self._limit:
            return 0
        if dropped := self.drop_finished():
            return dropped
        self._waiting.popitem(last=False)
        return 1

    def drop_finished(self) -> int:
        """Drop the calls of which both signals still wait, and return how many signals that were.

        An engine that could not be reached has missed such a call: its start would have it make room for nobody.
        """
        finished = [call for call, ended in self._waiting if ended and (call, False) in self._waiting]
        for call in finished:
            del self._waiting[call, False], self._waiting[call, True]
        return 2 * len(finished)

    def first(self, most: int) -> list[bytes]:
        """Return the oldest signals, at most ``most``, as encoded spans; they stay until :meth:`drop_first`."""
        return [span for _, span in zip(range(most), self._waiting.values(), strict=False)]

    def drop_first(self, count: int) -> None:
        """Forget the oldest ``count`` signals."""
        for _ in range(count):
            self._waiting.popitem(last=False)
