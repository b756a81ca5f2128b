"""A device for ``host_path.py`` that only takes time, and the watch on what the engine's own thread does meanwhile."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.engine.batch import Chunk
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction, Fence

LINK_BYTES_PER_S: Final = 53e9


class Watch:
    """Processor time, ns; what is left out counts in no measurement under way. ``parts``: of wrapped methods by name."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self._left_out = 0

    def leave_out(self, ns: int) -> None:
        """So much was the harness's."""
        self._left_out += ns

    def time(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Make ``call``: what it returned and what it cost."""
        left_out, began = self._left_out, time.thread_time_ns()
        result = call()
        return result, time.thread_time_ns() - began - (self._left_out - left_out)

    def wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """``method``, with the cost of each call added to the part ``name``."""

        def timed(*arguments: Any) -> Any:
            result, ns = self.time(lambda: method(*arguments))
            self.parts[name] += ns
            return result

        return timed


@dataclass
class Clock:
    """The time that the runner and the mover take."""

    now_ns: int = 1_000_000_000

    def unix_ns(self) -> int:
        """This instant."""
        return self.now_ns


class Step:
    """A launched step: reading it takes until it is over."""

    def __init__(self, clock: Clock, chunks: Sequence[Chunk], ends_ns: int) -> None:
        self._clock, self._ends_ns = clock, ends_ns
        self._tokens = {
            one.sequence_id: 1000 + (31 * one.sequence_id + one.start) % 29_000 for one in chunks if one.sample
        }

    def done(self) -> bool:
        """Whether it is over by now."""
        return self._clock.now_ns >= self._ends_ns

    def tokens(self) -> dict[int, int]:
        """Wait, and give a token to each who asked."""
        self._clock.now_ns = max(self._clock.now_ns, self._ends_ns)
        return self._tokens


class TimedRunner:
    """Takes the time that an H200 takes; ``watch`` leaves out its own work."""

    def __init__(self, clock: Clock, watch: Watch) -> None:
        self._clock, self._watch, self._ends_ns = clock, watch, 0
        self.chunks: Sequence[Chunk] = ()

    def launch(self, chunks: Sequence[Chunk], arrivals: Sequence[Fence] = ()) -> Step:
        """Queue a step behind those before it."""
        began = time.thread_time_ns()
        self.chunks = chunks
        prompt = sum(len(chunk.tokens) for chunk in chunks if len(chunk.tokens) > 1)
        took_ms = 8.0 + 0.0252 * prompt if prompt else 4.74 + 0.205 * len(chunks)
        self._ends_ns = max(self._clock.now_ns, self._ends_ns) + int(took_ms * 1e6)
        step = Step(self._clock, chunks, self._ends_ns)
        self._watch.leave_out(time.thread_time_ns() - began)
        return step

    def run(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """Launch and read."""
        return self.launch(chunks).tokens()


class TimedMover:
    """Carries out copies one after the other each way, at the link's rate; ``polled`` is what :meth:`poll` gave last."""

    def __init__(self, clock: Clock, watch: Watch, block_bytes: int) -> None:
        self._clock, self._watch = clock, watch
        self._copy_ns = int(block_bytes / LINK_BYTES_PER_S * 1e9)
        self._queues: dict[Direction, deque[CopyDone]] = {direction: deque() for direction in Direction}
        self._free_ns = dict.fromkeys(Direction, 0)
        self.polled: list[CopyDone] = []

    def submit(self, copies: Sequence[Copy], after: object | None = None) -> None:
        """Queue them."""
        began = time.thread_time_ns()
        for copy in copies:
            starts = max(self._clock.now_ns, self._free_ns[copy.direction])
            self._free_ns[copy.direction] = starts + self._copy_ns
            self._queues[copy.direction].append(CopyDone(copy, starts, starts + self._copy_ns))
        self._watch.leave_out(time.thread_time_ns() - began)

    def poll(self) -> list[CopyDone]:
        """What is over by now."""
        began = time.thread_time_ns()
        self.polled = []
        for queue in self._queues.values():
            while queue and queue[0].ended_ns <= self._clock.now_ns:
                self.polled.append(queue.popleft())
        self._watch.leave_out(time.thread_time_ns() - began)
        return self.polled

    def wait(self, timeout_s: float) -> None:
        """Let the time pass that the next piece of eight copies takes."""
        ends = [queue[min(7, len(queue) - 1)].ended_ns for queue in self._queues.values() if queue]
        self._clock.now_ns = min([*ends, self._clock.now_ns + int(timeout_s * 1e9)])

    def in_flight(self) -> int:
        """Copies not yet over."""
        return sum(len(queue) for queue in self._queues.values())

    def mark(self) -> object | None:
        """Copies need to wait for nothing."""
        return None

    def fence(self, copy_ids: Collection[int]) -> None:
        """No step waits on the device."""

    def queued(self, direction: Direction) -> int:
        """Copies not yet over, one way."""
        return len(self._queues[direction])

    def close(self) -> None:
        """Nothing is held."""
