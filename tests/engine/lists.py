"""A device and a host made of Python lists: their memory, and a runner and a mover that keep their contracts strictly."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from hashlib import blake2b

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction, Fence

BLOCK = 16
POISON = -1
VOCABULARY = 50
TICK_NS = 100_000_000


def mix(*values: int) -> int:
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=6).digest())


def next_token(kv: Seq[int]) -> int:
    return mix(*kv) % VOCABULARY


class Memory:
    """Rows of KV by device block and host slot."""

    def __init__(self, device_blocks: int, host_slots: int) -> None:
        self.device = [[POISON] * BLOCK for _ in range(device_blocks)]
        self.host = [[POISON] * BLOCK for _ in range(host_slots)]


class Device:
    """Carries out launches in their order, each at some moment before somebody waits for it: at once unless ``late``."""

    def __init__(self, seed: int, late: bool) -> None:
        self.launched = self.executed = 0
        self.written: dict[tuple[int, int], int] = {}  # by block and row, the launch that wrote it last
        self.spoiled: set[int] = set()  # blocks that a launch which waited for them found empty: their copies failed
        self._gates: list[Callable[[], None]] = []
        self._late = late
        self._random = random.Random(seed)
        self._queue: list[Callable[[], None]] = []

    def launch(self, work: Callable[[], None]) -> int:
        """Queue ``work``; how many launches there were with it."""
        gates, self._gates = self._gates, []

        def carry_out() -> None:
            for gate in gates:
                gate()
            work()

        self._queue.append(carry_out)
        self.launched += 1
        if not self._late:
            self.run_to(self.launched)
        return self.launched

    def before_next(self, gate: Callable[[], None]) -> None:
        """Have ``gate`` called at the beginning of the next launch, whenever that is carried out."""
        self._gates.append(gate)

    def run_to(self, ticket: int) -> None:
        while self.executed < ticket:
            self._queue.pop(0)()
            self.executed += 1

    def unlucky(self) -> bool:
        """Whether a chunk of a launch that fails is among those that were not computed."""
        return self._random.random() < 0.5

    def drift(self) -> None:
        """Time passes: perhaps some of what waits is carried out."""
        self.run_to(self._random.randint(self.executed, self.launched))


class Launch:
    """One step of :class:`ListRunner`."""

    def __init__(self, runner: ListRunner, chunks: Seq[Chunk], before: Launch | None, error: Exception | None) -> None:
        self.chunks, self.error = tuple(chunks), error
        self.results: dict[int, int] = {}
        self.broken: set[int] = set()
        self.read = False
        self._runner, self._before = runner, before
        for chunk in chunks:
            sampled = before is not None and any(c.sequence_id == chunk.sequence_id and c.sample for c in before.chunks)
            assert UNREAD not in chunk.tokens or sampled, f"nobody samples a token for sequence {chunk.sequence_id}"
        self.ticket = runner.device.launch(self.carry_out)

    def carry_out(self) -> None:
        before = self._before
        if self.error is not None:
            self.broken = {chunk.sequence_id for chunk in self.chunks}
        for chunk in self.chunks:
            read = max(chunk.start, min(chunk.write_from, chunk.start + len(chunk.tokens)))
            needed = chunk.table[: -(-read // BLOCK)]
            if self._follows_broken(chunk) or not self._runner.device.spoiled.isdisjoint(needed):
                self.broken.add(chunk.sequence_id)  # on a real device: garbage from garbage
                continue
            if self.error is not None and self._runner.device.unlucky():
                continue
            unread = before.results.get(chunk.sequence_id, 0) if before is not None else 0
            tokens = tuple(unread if token == UNREAD else token for token in chunk.tokens)
            self._runner.write(chunk, tokens)
            if chunk.sample:
                self.results[chunk.sequence_id] = self._runner.sample(chunk)
        self._before = None

    def _follows_broken(self, chunk: Chunk) -> bool:
        """Whether it goes on where a broken chunk of the launch before ended; one that started over does not."""
        if self._before is None or chunk.sequence_id not in self._before.broken:
            return False
        (one,) = (one for one in self._before.chunks if one.sequence_id == chunk.sequence_id)
        return one.start + len(one.tokens) == chunk.start and one.table == chunk.table[: len(one.table)]

    def done(self) -> bool:
        return self._runner.device.executed >= self.ticket

    def tokens(self) -> dict[int, int]:
        assert not self.read, "a step is read twice"
        self.read = True
        self._runner.device.run_to(self.ticket)
        if self.error is not None:
            raise self.error
        return self.results | dict.fromkeys(self.broken, 0)


class ListRunner:
    """Computes chunks over :class:`Memory`; ``fail`` makes the next launch raise, ``fail_late`` its reading.

    What the device computes of such a step nobody can tell, nor whether a launch that raises waits for what arrives.
    """

    def __init__(self, memory: Memory, device: Device) -> None:
        self.memory = memory
        self.device = device
        self.fail: Exception | None = None
        self.fail_late: Exception | None = None
        self.chunks: list[Chunk] = []
        self._last: Launch | None = None

    def launch(self, chunks: Seq[Chunk], arrivals: Seq[Fence] = ()) -> Launch:
        self.chunks = list(chunks)
        if self.fail is not None and self.device.unlucky():
            error, self.fail = self.fail, None
            raise error
        for fence in arrivals:
            fence.join()
        if self.fail is not None:
            error, self.fail = self.fail, None
            self._last = Launch(self, chunks, self._last, error)  # some of it runs all the same
            raise error
        late, self.fail_late = self.fail_late, None
        self._last = Launch(self, chunks, self._last, late)
        return self._last

    def run(self, chunks: Seq[Chunk]) -> dict[int, int]:
        return self.launch(chunks).tokens()

    def _row(self, chunk: Chunk, position: int) -> int:
        value = self.memory.device[chunk.table[position // BLOCK]][position % BLOCK]
        assert value != POISON, f"sequence {chunk.sequence_id} reads position {position} before it was there"
        return value

    def write(self, chunk: Chunk, tokens: Seq[int]) -> None:
        for position, token in enumerate(tokens, chunk.start):
            before = self._row(chunk, position - 1) if position else 0
            if position >= chunk.write_from:
                block, row = chunk.table[position // BLOCK], position % BLOCK
                self.memory.device[block][row] = mix(before, token)
                self.device.written[block, row] = self.device.executed + 1
                self.device.spoiled.discard(block)
            assert self._row(chunk, position) == mix(before, token)

    def sample(self, chunk: Chunk) -> int:
        return next_token([self._row(chunk, position) for position in range(chunk.start + len(chunk.tokens))])


@dataclass
class _Flight:
    copy: Copy
    due: int
    after: int  # the launches that come before it
    source: list[int] | None = None  # what it reads, once it runs
    joined: bool = False  # a launch waits for it
    done: CopyDone | None = None  # set where that launch has been carried out


class _Gate:
    """Copies that the next launch waits for; a :class:`~kvtrace.engine.swap.contract.Fence`."""

    def __init__(self, mover: ListMover, device: Device, flights: Seq[_Flight]) -> None:
        self._mover, self._device, self._flights = mover, device, flights

    def join(self, part: int | None = None) -> None:
        for flight in self._flights:
            flight.joined = True
        self._device.before_next(lambda: self._mover.end(self._flights))


class ListMover:
    """Carries copies out after random delays and in any order that the contract allows.

    While a copy runs, its target is poisoned, and both ends must be as they were when it ends: whoever touches a
    block or slot too early breaks an assertion or an output. Rows of a copy out that were written after the mark it was
    given may change, and do not arrive. A copy fails with probability ``failures``. With probability
    ``fences`` a launch may wait for copies that were submitted.
    """

    def __init__(
        self,
        memory: Memory,
        device: Device,
        seed: int = 0,
        most_delay: int = 4,
        failures: float = 0.0,
        fences: float = 0.0,
    ) -> None:
        self.memory = memory
        self.failures = failures
        self.fences = fences
        self.joined = 0
        self.held = False
        self.moved = {Direction.OUT: 0, Direction.IN: 0}
        self._device = device
        self._random = random.Random(seed)
        self._most_delay = most_delay
        self._flights: list[_Flight] = []
        self._tick = 0

    def mark(self) -> int:
        return self._device.launched

    def submit(self, copies: Seq[Copy], after: object | None = None) -> None:
        mark = self.mark() if after is None else after
        assert isinstance(mark, int)
        for copy in copies:
            busy_blocks = {flight.copy.device_block for flight in self._flights}
            busy_slots = {flight.copy.host_slot for flight in self._flights}
            assert copy.device_block not in busy_blocks, "two copies at one block"
            assert copy.host_slot not in busy_slots, "two copies at one slot"
            delay = self._random.randint(0, self._most_delay)
            self._flights.append(_Flight(copy, self._tick + delay, mark))
        self._start()

    def poll(self) -> list[CopyDone]:
        self._tick += 1
        self._device.drift()
        self._start()
        if self.held:
            return []
        ended = [flight for flight in self._flights if flight.due < self._tick and flight.source is not None]
        over = [flight for flight in self._flights if flight in ended or flight.done is not None]
        self._flights = [flight for flight in self._flights if flight not in over]
        self._random.shuffle(over)
        return [flight.done or self._finish(flight) for flight in over]

    def end(self, flights: Seq[_Flight]) -> None:
        """A launch that waits for ``flights`` begins: they are over, or were reported as over before."""
        self._start()
        for flight in [one for one in flights if one in self._flights and one.done is None]:
            flight.done = self._finish(flight)
            self.joined += 1

    def wait(self, timeout_s: float) -> None:
        assert not self.held, "the engine waits for copies that the test holds back"
        if self._flights:
            self._device.run_to(self._device.launched)
            self._start()
            self._tick = max(self._tick, min(flight.due for flight in self._flights))

    def in_flight(self) -> int:
        return len(self._flights)

    def fence(self, copy_ids: Collection[int]) -> _Gate | None:
        flights = [flight for flight in self._flights if flight.copy.id in copy_ids]
        waiting = len(flights) < len(copy_ids)
        if self.held or waiting or self._random.random() >= self.fences:
            return None
        failed = any(flight.done is not None and flight.done.error is not None for flight in flights)
        return None if failed else _Gate(self, self._device, flights)

    def queued(self, direction: Direction) -> int:
        return sum(flight.copy.direction is direction for flight in self._flights)

    def close(self) -> None:
        self.held = False

    def copies(self) -> list[Copy]:
        return [flight.copy for flight in self._flights]

    def _start(self) -> None:
        """Begin the copies whose launches have been carried out."""
        for flight in self._flights:
            if flight.source is None and flight.after <= self._device.executed:
                source, target = self._ends(flight.copy)
                target[:] = [POISON] * BLOCK
                flight.source = list(source)

    def _ends(self, copy: Copy) -> tuple[list[int], list[int]]:
        device, host = self.memory.device[copy.device_block], self.memory.host[copy.host_slot]
        return (device, host) if copy.direction is Direction.OUT else (host, device)

    def _finish(self, flight: _Flight) -> CopyDone:
        source, target = self._ends(flight.copy)
        if flight.copy.direction is Direction.OUT:
            written, block = self._device.written, flight.copy.device_block
            late = [row for row in range(BLOCK) if written.get((block, row), 0) > flight.after]
            source = [POISON if row in late else value for row, value in enumerate(source)]
            flight.source = [POISON if row in late else value for row, value in enumerate(flight.source or [])]
        assert source == flight.source, f"somebody changed the source of {flight.copy}"
        assert target == [POISON] * BLOCK, f"somebody wrote into the target of {flight.copy}"
        if self._random.random() < self.failures:
            if flight.joined and flight.copy.direction is Direction.IN:
                self._device.spoiled.add(flight.copy.device_block)
            return CopyDone(flight.copy, self._tick * TICK_NS, self._tick * TICK_NS, error="the link broke")
        target[:] = source
        if flight.copy.direction is Direction.IN:
            self._device.spoiled.discard(flight.copy.device_block)
        self.moved[flight.copy.direction] += 1
        return CopyDone(flight.copy, self._tick * TICK_NS, (self._tick + 1) * TICK_NS)
