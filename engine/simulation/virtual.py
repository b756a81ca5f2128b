"""A clock that nobody waits for, and a runner and a mover whose work takes modelled time on it. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from ..batch import Chunk
from ..swap.contract import Copy, CopyDone, Direction
from ..swap.limits import IN_FLIGHT_BYTES
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

    def tokens(self) -> dict[int, int]:
        """Wait for the step; made-up ids that depend on the request and the position alone."""
        self._clock.wait_until(self._ends_s)
        return self._sampled


class VirtualRunner:
    """Steps one after the other on one device. ``busy_until_s`` is when it has done all that was launched."""

    def __init__(self, machine: Machine, clock: VirtualClock) -> None:
        self.busy_until_s = self.busy_s = 0.0
        self._machine = machine
        self._clock = clock

    def launch(self, chunks: Sequence[Chunk]) -> VirtualStep:
        """Queue a step behind those that were launched before."""
        takes_s = self._machine.step_s(chunks)
        self.busy_s += takes_s
        self.busy_until_s = max(self._clock.now_s, self.busy_until_s) + takes_s
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
    """Copies that the next step waits for on the device."""

    runner: VirtualRunner
    ends_s: float

    def join(self) -> None:
        """Let the next step begin after them."""
        self.runner.wait_for(self.ends_s)


class VirtualMover:
    """Copies blocks one after the other each way, and not before the compute that the contract names is over."""

    def __init__(self, machine: Machine, clock: VirtualClock, runner: VirtualRunner, block_bytes: int) -> None:
        self._clock = clock
        self._runner = runner
        self._copy_s = block_bytes / machine.link_bytes_per_s
        self._on_device_s = IN_FLIGHT_BYTES / machine.link_bytes_per_s
        self._free_s = dict.fromkeys(Direction, 0.0)
        self._flights: dict[Direction, deque[tuple[float, Copy]]] = {direction: deque() for direction in Direction}
        self._ends_s: dict[int, float] = {}

    def mark(self) -> float:
        """When all that was launched so far is over."""
        return self._runner.busy_until_s

    def submit(self, copies: Sequence[Copy], after: object | None = None) -> None:
        """Queue copies behind those of their direction."""
        compute_s = after if isinstance(after, float) else self.mark()
        for copy in copies:
            begins_s = max(self._clock.now_s, compute_s, self._free_s[copy.direction])
            self._free_s[copy.direction] = self._ends_s[copy.id] = begins_s + self._copy_s
            self._flights[copy.direction].append((begins_s + self._copy_s, copy))

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
        ends_s = max((self._ends_s.get(number, inf) for number in copy_ids), default=0.0)
        return VirtualFence(self._runner, ends_s) if ends_s <= self._clock.now_s + self._on_device_s else None

    def queued(self, direction: Direction) -> int:
        """Copies that are not over."""
        return sum(ends_s > self._clock.now_s for ends_s, _ in self._flights[direction])

    def wait(self, timeout_s: float) -> None:
        """Let time pass to the end of the next copy."""
        ends = [flights[0][0] for flights in self._flights.values() if flights]
        if ends:
            self._clock.wait_until(min(min(ends), self._clock.now_s + timeout_s))

    def in_flight(self) -> int:
        """Copies that no :meth:`poll` has returned."""
        return len(self._ends_s)

    def close(self) -> None:
        """Nothing is held."""


def _token(chunk: Chunk) -> int:
    return _FIRST_ID + (chunk.sequence_id * 7919 + chunk.generated * 31) % _IDS
