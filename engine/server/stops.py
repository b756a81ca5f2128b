"""Stop strings in a stream of text: nothing is given out that may turn out to be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Cuts a text before the one of ``stops`` that is complete first, and of several the longest.

    ``stopped`` is the stop string that was found. Text is held back only while it could still become one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain with ``text`` added; none after a stop."""
        if self.stopped is not None or not text:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stopped = min(found)
            self._held = ""
            return text[:at]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The rest: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        most = min(len(text), max(map(len, self._stops)) - 1)
        return next((size for size in range(most, 0, -1) if any(s.startswith(text[-size:]) for s in self._stops)), 0)
