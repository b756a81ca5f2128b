"""A clock that nobody waits for, and a runner and a mover whose work takes modelled time on it. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from ..batch import Chunk
from ..geometry import KVGeometry
from ..swap.contract import Copy, CopyDone, Direction, Fence
from .machine import Machine

_FIRST_ID = 1000
_IDS = 20_000


class VirtualClock:
    """Seconds since the start, moved by whoever waits for something."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def unix_ns(self) -> int:
        """Nanoseconds; never 0, which records take for *never*."""
        return 1_000_000_000 + round(self.now_s * 1e9)

    def wait_until(self, instant_s: float) -> None:
        """Let time pass up to ``instant_s``, unless it is over."""
        self.now_s = max(self.now_s, instant_s)


class VirtualStep:
    """A step under way; reading it waits for its end."""

    def __init__(self, clock: VirtualClock, ends_s: float, sampled: dict[int, int]) -> None:
        self._clock = clock
        self._ends_s = ends_s
        self._sampled = sampled

    def done(self) -> bool:
        """Whether it is over by now."""
        return self._clock.now_s >= self._ends_s

    def tokens(self) -> dict[int, int]:
        """Wait for the step; made-up ids that depend on the request and the position alone."""
        self._clock.wait_until(self._ends_s)
        return self._sampled


class VirtualRunner:
    """Steps one after the other on one device. ``busy_until_s`` is when it has done all that was launched.

    A step that computes prompts begins with the first of ``parts`` groups of layers as soon as that group's KV is there;
    one that only decodes begins when all of it is.
    """

    def __init__(self, machine: Machine, clock: VirtualClock, parts: int) -> None:
        self.busy_until_s = self.busy_s = 0.0
        self._machine = machine
        self._clock = clock
        self._parts = parts
        self._ends_s: deque[float] = deque()

    def next_end_s(self) -> float:
        """When the first step ends that is not over; infinite where there is none."""
        while self._ends_s and self._ends_s[0] <= self._clock.now_s:
            self._ends_s.popleft()
        return self._ends_s[0] if self._ends_s else inf

    def launch(self, chunks: Sequence[Chunk], arrivals: Sequence[Fence] = ()) -> VirtualStep:
        """Queue a step behind those that were launched before, each group of layers behind what ``arrivals`` bring of it."""
        takes_s = self._machine.step_s(chunks)
        self.busy_s += takes_s
        self.wait_for(self._clock.now_s)
        prompts = any(len(chunk.tokens) > 1 for chunk in chunks)
        parts: Sequence[int | None] = range(self._parts) if prompts else (None,)
        for part in parts:
            for arrival in arrivals:
                arrival.join(part)
            self.busy_until_s += takes_s / len(parts)
        self._ends_s.append(self.busy_until_s)
        sampled = {chunk.sequence_id: _token(chunk) for chunk in chunks if chunk.sample}
        return VirtualStep(self._clock, self.busy_until_s, sampled)

    def run(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """Launch a step and wait for it."""
        return self.launch(chunks).tokens()

    def wait_for(self, instant_s: float) -> None:
        """Let the next step begin no earlier."""
        self.busy_until_s = max(self.busy_until_s, instant_s)


@dataclass(frozen=True, slots=True)
class VirtualFence:
    """Copies that the next step waits for on the device: ``ends_s`` is when each group of layers is there, the first one first."""

    runner: VirtualRunner
    ends_s: tuple[float, ...]

    def join(self, part: int | None = None) -> None:
        """Let the next step begin after what they bring of ``part`` and of those before it, or after all of it."""
        self.runner.wait_for(self.ends_s[-1 if part is None else part])


@dataclass(slots=True)
class _Batch:
    """The newest copies in, all decided on in one go: they cross the link in one go as well. ``decided_s``: when the last was."""

    decided_s: float = -1.0
    begins_s: float = 0.0
    ends_s: float = 0.0


class VirtualMover:
    """Copies blocks one after the other each way, and not before the compute that the contract names is over.

    Whoever submits copies in spends some time on each of them, which begins after that. The last bytes of a batch of them
    that no other one waits behind cross one group of layers after the other, where the machine's mover does so: a fence
    knows of that, while the books have each copy end as if whole blocks crossed.
    """

    def __init__(self, machine: Machine, clock: VirtualClock, runner: VirtualRunner, geometry: KVGeometry) -> None:
        self._clock = clock
        self._runner = runner
        self._parts = len(geometry.parts)
        bounds, rate = machine.bounds_in, machine.link_bytes_per_s
        self._copy_s, self._host_s = geometry.block_bytes / rate, machine.copy_host_us / 1e6
        self._in_flight_s, self._last_s = bounds.in_flight / rate, bounds.last / rate
        self._parted_s = (bounds.in_parts or bounds.last) / rate
        self._whole_s = bounds.parted / rate if machine.batched else inf
        self._free_s = dict.fromkeys(Direction, 0.0)
        self._flights: dict[Direction, deque[tuple[float, Copy]]] = {direction: deque() for direction in Direction}
        self._ends_s: dict[int, float] = {}
        self._newest = _Batch()

    def mark(self) -> float:
        """When all that was launched so far is over."""
        return self._runner.busy_until_s

    def submit(self, copies: Sequence[Copy], after: object | None = None) -> None:
        """Queue copies behind those of their direction."""
        compute_s = after if isinstance(after, float) else self.mark()
        for copy in copies:
            before_s = self._clock.now_s
            if copy.direction is Direction.IN:
                self._clock.now_s += self._host_s
            begins_s = max(self._clock.now_s, compute_s, self._free_s[copy.direction])
            ends_s = self._free_s[copy.direction] = self._ends_s[copy.id] = begins_s + self._copy_s
            self._flights[copy.direction].append((ends_s, copy))
            if copy.direction is Direction.IN:
                if self._newest.decided_s < before_s:
                    self._newest = _Batch(begins_s=begins_s)
                self._newest.decided_s, self._newest.ends_s = self._clock.now_s, ends_s

    def poll(self) -> list[CopyDone]:
        """The copies that are over by now."""
        done = []
        for flights in self._flights.values():
            while flights and flights[0][0] <= self._clock.now_s:
                ends_s, copy = flights.popleft()
                del self._ends_s[copy.id]
                done.append(CopyDone(copy, round((ends_s - self._copy_s) * 1e9), round(ends_s * 1e9)))
        return done

    def fence(self, copy_ids: Collection[int]) -> VirtualFence | None:
        """As many bytes as a real mover has on the device at once can be waited for there."""
        now_s, newest = self._clock.now_s, self._newest
        ends_s = max((self._ends_s.get(number, inf) for number in copy_ids), default=0.0)
        # Behind any other batch somebody waits, so that no more of it is on the device than keeps the link busy.
        alone = newest.begins_s < ends_s <= newest.ends_s
        if not alone or newest.ends_s > now_s + self._last_s:
            on_device = ends_s <= now_s + self._in_flight_s
            return VirtualFence(self._runner, (ends_s,) * self._parts) if on_device else None
        begins_s = max(newest.begins_s, newest.ends_s - self._parted_s)
        if begins_s >= ends_s or newest.ends_s - begins_s <= self._whole_s:
            return VirtualFence(self._runner, (ends_s,) * self._parts)
        each_s = (newest.ends_s - begins_s) / self._parts
        return VirtualFence(self._runner, tuple(begins_s + each_s * part for part in range(1, self._parts + 1)))

    def queued(self, direction: Direction) -> int:
        """Copies that are not over."""
        return sum(ends_s > self._clock.now_s for ends_s, _ in self._flights[direction])

    def wait(self, timeout_s: float) -> None:
        """Let time pass to the end of the next copy."""
        ends = [flights[0][0] for flights in self._flights.values() if flights]
        if ends:
            self._clock.wait_until(min(min(ends), self._clock.now_s + timeout_s))

    def last_end_s(self) -> float:
        """When all copies are over; infinite where there are none."""
        return max((flights[-1][0] for flights in self._flights.values() if flights), default=inf)

    def in_flight(self) -> int:
        """Copies that no :meth:`poll` has returned."""
        return len(self._ends_s)

    def close(self) -> None:
        """Nothing is held."""


def _token(chunk: Chunk) -> int:
    return _FIRST_ID + (chunk.sequence_id * 7919 + chunk.generated * 31) % _IDS
