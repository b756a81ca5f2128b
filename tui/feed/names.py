"""Names for agents that a server knows only by their ids: those in the spans that were recorded here.

``kvtrace.tracer.agent("tests")`` gives each run a fresh id of 16 hexadecimal digits, and that is all the engine hears of
it. The name stands in the span file. JSON keeps the ids.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .contract import Feed, FeedError, Sample
from .decode import printable

if TYPE_CHECKING:
    from .spans import SpanTail

_FRESH_ID: Final = re.compile(r"[0-9a-f]{16}")
_LOOK_AGAIN_S: Final = 5.0
_RECENT_S: Final = 86_400.0


class NamedFeed:
    """Another feed whose agents bear the names that span files below ``paths`` give them."""

    def __init__(self, feed: Feed, paths: Sequence[Path] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._feed, self._paths, self._clock = feed, paths, clock
        self._names: dict[str, str] = {}
        self._tails: dict[Path, SpanTail] = {}
        self._looked_s = -_LOOK_AGAIN_S

    @property
    def where(self) -> str:
        """What is being watched."""
        return self._feed.where

    @property
    def speed(self) -> float | None:
        """The other feed's."""
        return self._feed.speed

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._feed.over

    def read(self) -> list[Sample]:
        """The other feed's samples with names. Raises :class:`FeedError` as it does."""
        samples = self._feed.read()
        ids = {agent.agent for sample in samples for agent in sample.snapshot.agents}
        unknown = any(_FRESH_ID.fullmatch(each) and each not in self._names for each in ids)
        if unknown and self._clock() - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = self._clock()
            self._look()
        return [self._named(sample) for sample in samples] if self._names.keys() & ids else samples

    def play_at(self, speed: float) -> None:
        """Play the other feed at this speed."""
        self._feed.play_at(speed)

    def close(self) -> None:
        """Close the other feed."""
        self._feed.close()

    def _look(self) -> None:
        """Read what is new in the files written lately: agents that share a server are often runs of their own."""
        from itertools import count

        from .spans import SpanTail, find

        try:
            files = [path for path in find(self._paths, every_run=True) if _is_recent(path)]
        except FeedError:
            return  # nothing was recorded here
        for path in files:
            tail = self._tails.setdefault(path, SpanTail(path, count()))
            for record in tail.read():
                if record.kind == "agent" and record.agent_id and record.agent_name:
                    self._names[record.agent_id] = printable(record.agent_name)

    def _named(self, sample: Sample) -> Sample:
        shown = self._shown_names([agent.agent for agent in sample.snapshot.agents])
        agents = tuple(replace(agent, agent=shown[agent.agent]) for agent in sample.snapshot.agents)
        events = tuple(
            replace(event, agent=shown.get(event.agent) or self._names.get(event.agent, event.agent))
            for event in sample.snapshot.events
        )
        return replace(sample, snapshot=replace(sample.snapshot, agents=agents, events=events))

    def _shown_names(self, ids: Sequence[str]) -> dict[str, str]:
        """A name for each id; agents of the same name are told apart by the end of their ids."""
        names = {each: self._names.get(each, each) for each in ids}
        often = list(names.values())
        return {each: f"{name} {each[-4:]}" if often.count(name) > 1 else name for each, name in names.items()}


def _is_recent(path: Path) -> bool:
    """Whether a live server may still know an agent of this file; one that is gone tells nothing."""
    try:
        return path.stat().st_mtime >= time.time() - _RECENT_S
    except OSError:
        return False
