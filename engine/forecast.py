"""How long a wait will still last, from how long waits of its kind lasted. Pure and torch-free; bounded memory.

Lengths are counted in logarithmic bins, a quarter of an octave each, and older ones weigh less with every new one: the
figures follow a tool that changes, and a tool costs the same memory after a million calls as after ten. A document of
``kvtrace report --forecast`` (docs/forecast.schema.json) gives every tool it knows a start.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, Final

from .errors import ConfigError

_LEAST_S: Final = 1e-3
_PER_OCTAVE: Final = 4
_BINS: Final = 27 * _PER_OCTAVE + 2  # the first ends at 1 ms, the last begins at a day and a half
_MEMORY: Final = 64  # a length counts half of its first weight after two thirds as many further ones
_MOST_TOOLS: Final = 256
_SEED_CALLS: Final = 16.0  # most calls of this engine's own that a document's figures stand for

# Which share of all lengths each quantile of a document stands for: up to halfway to its neighbours.
_SHARES: Final = {"p10_s": 0.175, "p25_s": 0.2, "p50_s": 0.25, "p75_s": 0.2, "p90_s": 0.12, "p99_s": 0.055}


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a wait, in seconds: half of those like it end within ``p50_s``, nine in ten within ``p90_s``."""

    p50_s: float
    p90_s: float
    mean_s: float


class Durations:
    """Lengths of one kind of wait, newer ones weighing more."""

    def __init__(self) -> None:
        self._weights = [0.0] * _BINS

    @property
    def weight(self) -> float:
        """How many lengths it stands on, older ones counted for less."""
        return sum(self._weights)

    def add(self, seconds: float) -> None:
        """Learn one length."""
        keep = 1 - 1 / _MEMORY
        self._weights = [weight * keep for weight in self._weights]
        self._weights[_bin(seconds)] += 1

    def seed(self, seconds: float, weight: float) -> None:
        """Count ``weight`` lengths of ``seconds`` without making the others older."""
        self._weights[_bin(seconds)] += weight

    def beyond(self, seconds: float) -> float:
        """Share of the lengths that are longer than ``seconds``; 1 where none is known."""
        total = self.weight
        return sum(self._beyond(seconds)) / total if total else 1.0

    def longest_s(self) -> float | None:
        """The longest that is not forgotten yet, to within a quarter of an octave; ``None`` where no length is known."""
        least = 1e-3 * self.weight
        return next((_edge(at) for at in reversed(range(_BINS)) if self._weights[at] > least), None)

    def left(self, elapsed_s: float = 0.0) -> Left | None:
        """What is left of a wait that has lasted ``elapsed_s``; ``None`` where no length is known.

        A wait that has outlasted everything seen so far is expected to last as long again.
        """
        weight = self.weight
        if not weight:
            return None
        beyond = self._beyond(elapsed_s)
        reached = list(accumulate(beyond))
        total = reached[-1]
        if total < 1e-3 * weight:
            return Left(elapsed_s, 3 * elapsed_s, elapsed_s)
        at = _bin(elapsed_s)
        # Only of its own bin may the length that stands for it be over already.
        over = min(_LENGTHS[at] - elapsed_s, 0.0) * beyond[0]
        mean = (sum(map(mul, beyond, _LENGTHS[at:])) - over) / total - elapsed_s
        p50, p90 = (_LENGTHS[at + bisect_left(reached, share * total)] for share in (0.5, 0.9))
        return Left(max(p50 - elapsed_s, 0.0), max(p90 - elapsed_s, 0.0), max(mean, 0.0))

    def _beyond(self, seconds: float) -> list[float]:
        """The weights of what lies beyond ``seconds``, from its own bin on; of that the part above."""
        at = _bin(seconds)
        low, high = _edge(at - 1), _edge(at)
        part = min(max((high - seconds) / (high - low), 0.0), 1.0) if at < _BINS - 1 else 1.0
        beyond = self._weights[at:]
        beyond[0] *= part
        return beyond


class Forecasts:
    """What is known of every tool's calls, of waits for tools whatever they are, of people's pauses and of silences."""

    def __init__(self, document: Mapping[str, Any] | None = None) -> None:
        self._tools: OrderedDict[str, Durations] = OrderedDict()
        self._any = Durations()
        self._pauses = Durations()
        self._silences = Durations()
        if document is not None:
            self._take(document)

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any] | None) -> Forecasts:
        """Start from a document of ``kvtrace report --forecast``, given as a file's path or as what the file holds.

        Raises:
            ConfigError: the file cannot be read, or is not such a document.
        """
        if source is None or isinstance(source, Mapping):
            return cls(source)
        try:
            document = json.loads(Path(source).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot read the forecast {source}: {error}; make one with `kvtrace report --forecast FILE`"
            ) from error
        return cls(document)

    def call_ended(self, tool: str | None, seconds: float) -> None:
        """Learn how long a call took."""
        if tool is None or not 0 <= seconds < math.inf:
            return
        self._of(tool).add(seconds)

    def wait_ended(self, seconds: float) -> None:
        """Learn how long an agent waited for tools, whatever they were."""
        self._any.add(max(seconds, 0.0))

    def pause_ended(self, seconds: float) -> None:
        """Learn how long a person took."""
        self._pauses.add(max(seconds, 0.0))

    def call(self, tool: str | None, elapsed_s: float = 0.0) -> Left | None:
        """What is left of a call of ``tool``; of any wait where the tool is new; ``None`` where nothing is known."""
        known = self._tools.get(tool) if tool is not None else None
        return (known or self._any).left(elapsed_s)

    def longest_s(self, tool: str | None) -> float | None:
        """The longest that a call of ``tool`` or anybody's wait for tools has lasted; ``None`` where nothing is known."""
        known = self._tools.get(tool) if tool is not None else None
        every = (one.longest_s() for one in (known, self._any) if one is not None)
        return max((one for one in every if one is not None), default=None)

    def pause(self, elapsed_s: float = 0.0) -> Left | None:
        """What is left of a person's pause."""
        return self._pauses.left(elapsed_s)

    def silence_ended(self, seconds: float) -> None:
        """Learn how long an agent was away of whose tools nobody tells."""
        self._silences.add(max(seconds, 0.0))

    def silence(self, elapsed_s: float = 0.0) -> Left | None:
        """What is left until such an agent is back, if it comes back."""
        return self._silences.left(elapsed_s)

    def longest_silence_s(self) -> float | None:
        """The longest that one was away and came back; ``None`` where none has come back yet."""
        return self._silences.longest_s()

    def _of(self, tool: str) -> Durations:
        durations = self._tools.setdefault(tool, Durations())
        self._tools.move_to_end(tool)
        while len(self._tools) > _MOST_TOOLS:
            self._tools.popitem(last=False)
        return durations

    def _take(self, document: Mapping[str, Any]) -> None:
        try:
            for row in document["tools"]:
                _seed(self._of(str(row["tool"])), row)
            if document["any_tool"] is not None:
                _seed(self._any, document["any_tool"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the forecast is not one ({type(error).__name__}: {error}); make one with `kvtrace report --forecast FILE`"
            ) from error


def _seed(durations: Durations, row: Mapping[str, Any]) -> None:
    weight = min(float(row["calls"]), _SEED_CALLS)
    for name, share in _SHARES.items():
        durations.seed(float(row[name]), weight * share)


def _bin(seconds: float) -> int:
    if seconds <= _LEAST_S:
        return 0
    return min(1 + int(_PER_OCTAVE * math.log2(seconds / _LEAST_S)), _BINS - 1)


def _edge(number: int) -> float:
    """Where bin ``number`` ends."""
    return float(_LEAST_S * 2 ** (number / _PER_OCTAVE)) if number >= 0 else 0.0


_LENGTHS: Final = [_LEAST_S / 2, *(math.sqrt(_edge(number - 1) * _edge(number)) for number in range(1, _BINS))]
"""The length that stands for each bin."""
