"""The in-process subscribers of signals."""

from __future__ import annotations

from .diagnostics import COUNTS, warn_once
from .signals import Signal, Sink

# Replaced as a whole, never changed in place: a delivery in another thread keeps the tuple that it began with.
_sinks: tuple[Sink, ...] = ()


def subscribe(sink: Sink) -> None:
    """Call ``sink`` with every :class:`ToolStarted` and :class:`ToolEnded` of this process from now on.

    The sink runs in the tool's own thread, before the tool starts and after it ended, so it must only queue. What it
    raises is counted and said once. A forked child starts without subscribers, since their threads stay behind.
    """
    global _sinks
    if sink not in _sinks:
        _sinks = (*_sinks, sink)


def unsubscribe(sink: Sink) -> None:
    """Stop calling ``sink``; unknown sinks are ignored."""
    global _sinks
    _sinks = tuple(known for known in _sinks if known != sink)


def replace_sinks(sinks: tuple[Sink, ...]) -> tuple[Sink, ...]:
    """Put ``sinks`` in the place of all subscribers and return those that were there."""
    global _sinks
    before, _sinks = _sinks, sinks
    return before


def has_sinks() -> bool:
    """Tell whether anybody listens."""
    return bool(_sinks)


def deliver(signal: Signal) -> None:
    """Hand ``signal`` to every subscriber."""
    for sink in _sinks:
        try:
            sink(signal)
        except Exception as error:
            COUNTS.sink_errors += 1
            warn_once(
                "sink",
                "kvtrace: a signal sink raised %s; signals to it may be lost. Further errors are counted.",
                type(error).__name__,
            )
