"""From what a person asked for to a feed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .contract import Feed, FeedError, Sample
from .demo import DemoFeed
from .http import HttpFeed, ServerAddress, default_address, http_feed

_LOOK_AGAIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to watch: at most one of ``url``, ``paths``, ``replay`` and ``demo``; none of them means: find something.

    ``at_end``: a replay begins where it ends, for whoever looks only once. ``names``: agents of a server bear the names
    that spans give them.
    """

    url: str | None = None
    paths: tuple[Path, ...] = ()
    replay: Path | None = None
    demo: bool = False
    agents: int = 12
    seed: int = 0
    speed: float = 1.0
    at_end: bool = False
    names: bool = True


def choose_feed(wanted: Wanted) -> Feed:
    """The feed for what is wanted. Raises ``ValueError`` for a bad address, :class:`FeedError` for a bad file."""
    if wanted.demo:
        return DemoFeed(wanted.agents, wanted.seed, time.time_ns, wanted.speed)
    if wanted.replay is not None:
        from .replay import ReplayFeed, open_film

        return ReplayFeed(open_film(wanted.replay), str(wanted.replay), time.monotonic, wanted.speed, wanted.at_end)
    if wanted.paths:
        from .spans import SpanFeed, find

        find(wanted.paths)
        return SpanFeed(wanted.paths, time.time_ns)
    if wanted.url is not None:
        feed: Feed = http_feed(ServerAddress.parse(wanted.url))
    else:
        feed = FoundFeed(http_feed(default_address()))
    if not wanted.names:
        return feed
    from .names import NamedFeed

    return NamedFeed(feed)


class FoundFeed:
    """The local server where one answers; until then the newest run's spans, if there are any."""

    speed = None
    over = False

    def __init__(
        self, server: HttpFeed, paths: Sequence[Path] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._server = server
        self._paths = paths
        self._spans: Feed | None = None
        self._met = False
        self._why = ""
        self._asked_s = -_LOOK_AGAIN_S

    @property
    def where(self) -> str:
        """What is being watched at the moment."""
        return self._server.where if self._met or self._spans is None else self._spans.where

    def read(self) -> list[Sample]:
        """A sample of the server, else of spans. A server that was met once is waited for, and not replaced."""
        if self._met or self._clock() - self._asked_s >= _LOOK_AGAIN_S:
            self._asked_s = self._clock()
            try:
                samples = self._server.read()
            except FeedError as error:
                if self._met:
                    raise
                self._why = str(error)
            else:
                self._met, self._spans = True, None
                return samples
        return self._read_spans()

    def play_at(self, speed: float) -> None:
        """The present goes at its own pace."""

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _read_spans(self) -> list[Sample]:
        from .spans import SpanFeed

        spans = self._spans or SpanFeed(self._paths, time.time_ns)
        try:
            samples = spans.read()
        except FeedError:
            raise FeedError(
                f"no server at {self._server.where} ({self._why}) and no recorded spans; start `kvtrace serve MODEL`, "
                "run an agent with kvtrace's decorators, or see `kvtrace top --demo`"
            ) from None
        self._spans = spans
        return samples
