"""The past as a feed, at any speed: a recording of samples (what ``--json --watch`` wrote), or spans."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from .contract import FASTEST, SLOWEST, FeedError, Sample, SourceKind
from .decode import sample_from
from .span_world import SpanWorld
from .spans import read_whole

_NS: Final = 1_000_000_000
_STEP_NS: Final = _NS // 2
_MOST_STEPS: Final = 600
_MOST_BYTES: Final = 512 << 20


class Film(Protocol):
    """Something that happened, from ``first_ns`` to ``last_ns``."""

    first_ns: int
    last_ns: int

    def between(self, after_ns: int, until_ns: int) -> list[Sample]:
        """Samples later than the one instant and not later than the other, oldest first."""
        ...


class Recording:
    """Samples as they were recorded."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._times = [sample.snapshot.time_unix_ns for sample in samples]
        self.first_ns, self.last_ns = self._times[0], self._times[-1]

    def between(self, after_ns: int, until_ns: int) -> list[Sample]:
        """Samples of an interval."""
        return list(self._samples[bisect_right(self._times, after_ns) : bisect_right(self._times, until_ns)])


class SpanFilm:
    """Samples twice a second, made from spans."""

    def __init__(self, world: SpanWorld, where: str) -> None:
        if world.first_ns is None:
            raise FeedError(f"{where} holds no span with a start; `kvtrace report {where}` tells what it holds")
        self._world, self._where = world, where
        self.first_ns, self.last_ns = world.first_ns, world.last_ns

    def between(self, after_ns: int, until_ns: int) -> list[Sample]:
        """Samples of an interval. Its steps grow where it is long, so that the fastest replay keeps up."""
        length_ns = until_ns - after_ns
        if length_ns <= 0:
            return []
        steps = min(_MOST_STEPS, max(1, length_ns // _STEP_NS))
        samples = []
        for step in range(1, steps + 1):
            at_ns = after_ns + length_ns * step // steps
            self._world.advance(at_ns)
            samples.append(Sample(self._world.snapshot(at_ns, _FORGET_S), SourceKind.SPANS, self._where))
        return samples


_FORGET_S: Final = 120.0


class ReplayFeed:
    """Plays a film from its beginning, or ``at_end`` all of it at once; at its end the last picture stays."""

    def __init__(
        self, film: Film, where: str, clock: Callable[[], float], speed: float = 1.0, at_end: bool = False
    ) -> None:
        self.where = where
        self.speed = min(max(speed, SLOWEST), FASTEST)
        self._film, self._clock = film, clock
        self._began_s: float | None = None
        self._base_ns = film.last_ns if at_end else film.first_ns
        self._told_ns = film.first_ns - 1

    @property
    def over(self) -> bool:
        """Whether all of it was told."""
        return self._told_ns >= self._film.last_ns

    def read(self) -> list[Sample]:
        """What happened since the last call."""
        until_ns = min(self._time_ns(), self._film.last_ns)
        samples = self._film.between(self._told_ns, until_ns)
        self._told_ns = max(self._told_ns, until_ns)
        return samples

    def play_at(self, speed: float) -> None:
        """Play at this speed from now on."""
        self._base_ns, self._began_s = self._time_ns(), self._clock()
        self.speed = min(max(speed, SLOWEST), FASTEST)

    def close(self) -> None:
        """Nothing is kept open."""

    def _time_ns(self) -> int:
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        return self._base_ns + round((now_s - self._began_s) * self.speed * _NS)


def open_film(path: Path) -> Film:
    """A recording of samples, or spans of any kind that ``kvtrace report`` reads. Raises :class:`FeedError`."""
    samples = read_recording(path) if path.is_file() else None
    return Recording(samples) if samples else SpanFilm(read_whole([path]), str(path))


def read_recording(path: Path) -> list[Sample] | None:
    """Samples of a recording, in order of time; ``None`` where the file is none. Raises :class:`FeedError`.

    A last line that was cut off is left out: whoever recorded may have been stopped at any moment.
    """
    try:
        with path.open("rb") as file:
            if not _is_sample(_parse(file.readline(_MOST_BYTES))):
                return None
            file.seek(0)
            found = [(number, _parse(line)) for number, line in enumerate(file, 1) if line.strip()]
    except OSError as error:
        raise FeedError(f"{path} cannot be read: {error.strerror or error}") from error
    if found and not _is_sample(found[-1][1]):
        found.pop()
    for number, document in found:
        if not _is_sample(document):
            raise FeedError(f"{path}, line {number}, is no sample of kvtrace top; leave it out")
    samples = [sample_from(document, str(path)) for _, document in found]
    return sorted(samples, key=lambda sample: sample.snapshot.time_unix_ns)


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_sample(document: object) -> bool:
    return isinstance(document, dict) and {"time_unix_ns", "agents"} <= set(document)
