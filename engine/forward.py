"""Forward steps: chunks from requests, and what their results mean for them. Torch-free.

A step is *launched*, and later *read*. Where steps are pipelined, the next one is planned and launched in between, so that one
waits on the device while another one runs: a request that decodes goes on with a token nobody has read yet. If that token turns
out to end it, the step computed one position too many, which nobody ever looks at: the block it went to is written and read in
the order of the launches, and copies that touch it start after everything launched before them.

A request whose KV still comes from the host is launched *early* once all that is missing is on its way on the device:
the runner lets the device wait for the copies there, the first layers for their part of them alone where it can, and all
that the host does for the step is done meanwhile. When that step is read, the copies are over, and are taken off the
books before anything that it computed is entered. If one of them failed, the request has started over, and the step is
void for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from kvtrace.tracer.clock import Clock

from .batch import UNREAD, Chunk, Pending, Runner
from .config import EngineConfig
from .meters import Tally
from .parking import Parking
from .past import Past
from .requests import Requests
from .scheduler import Share, plan_shares, step_limit
from .sequence import Sequence, SequenceStatus
from .sessions import Sessions
from .swap.contract import Fence
from .tiers import TieredCache

_WAIT_S: Final = 0.05
"""Longest wait for one more of a step's copies; they are looked at again after that."""

_LOOK_S: Final = 0.0002
"""How often it is asked whether a step is over while others may want something."""


@dataclass(slots=True)
class Outcome:
    """What was read: new output tokens, each with its sequence's id, in the order they came, and the requests that ended with it."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Take over what ``other`` has."""
        self.tokens += other.tokens
        self.finished += other.finished


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was launched and not read. ``attempts``: how often each of its requests had started over by then."""

    chunks: tuple[Chunk, ...]
    pending: Pending
    started_ns: int
    number: int
    mark: object | None
    attempts: dict[int, int]
    early: bool


class Forward:
    """Builds chunks for the requests that can run, runs them, and enters what was computed.

    ``on_launch`` hears of every step that was launched. ``mark`` gives the mover's mark of this point of the device's work,
    and ``written`` is the one taken after the step that was read last: what is in the cache was written before it.
    ``settled`` is that launch's number, with its mark: who relies on it and all before it being over waits for that mark.
    ``fence`` and ``wait`` are the mover's, and ``collect`` takes the copies that ended off the books.
    ``meanwhile`` is called, for at most so many seconds, again and again while :meth:`read` waits for a step: what it does to
    requests and agents is found when that is read. ``on_tokens`` hears of new output before anything else is done about it.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        clock: Clock,
        requests: Requests,
        cache: TieredCache,
        parking: Parking,
        sessions: Sessions,
        past: Past,
        tally: Tally,
    ) -> None:
        self._config = config
        self._runner = runner
        self._clock = clock
        self._requests = requests
        self._cache = cache
        self._parking = parking
        self._sessions = sessions
        self._past = past
        self._tally = tally
        self.on_launch: Callable[[Seq[Chunk]], None] = lambda chunks: None
        self.mark: Callable[[], object | None] = lambda: None
        self.written: object | None = None
        self.settled: tuple[int, object | None] = (0, None)
        self.fence: Callable[[Collection[int]], Fence | None] = lambda copies: None
        self.wait: Callable[[float], None] = lambda timeout_s: None
        self.collect: Callable[[], object] = lambda: None
        self.meanwhile: Callable[[float], object] | None = None
        self.on_tokens: Callable[[Mapping[int, int]], object] = lambda tokens: None
        self._fences: list[Fence] = []
        self._flights: deque[_Flight] = deque()
        self._read_ns = 0

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched that nobody has read."""
        return len(self._flights) > 0

    @property
    def full(self) -> bool:
        """Whether the next step can only be launched when another one was read: it may go on with unread tokens of the newest alone."""
        return len(self._flights) >= (2 if self._config.pipelined else 1)

    @property
    def wants_reading(self) -> bool:
        """Whether some request cannot be planned before a step in flight is read."""
        return self.in_flight and any(one.unread and one.sampling.needs_history for one in self._ready())

    def chunks(self, now_ns: int) -> list[Chunk]:
        """The next step's work; requests that wait for a block, or for a copy still on the host, have no part in it."""
        for sequence in self._ready():
            if sequence.pending > 1 and not sequence.in_flight:
                self._requests.rematch(sequence, now_ns)
        self._fences = []
        arriving = self._arriving()
        candidates = [*self._ready(), *(sequence for sequence, _ in arriving.values())]
        shares = self._shares([one for one in self._without_twins(candidates) if self._can_go_on(one)])
        for share in shares:
            if share.id in arriving:
                self._start_early(*arriving[share.id])
        return [self._chunk(self._requests.running[share.id], share.tokens) for share in shares]

    def launch(self, chunks: Seq[Chunk]) -> Outcome:
        """Launch ``chunks``; what was read is what could not be left unread.

        An exception of the runner ends the requests of its step, whose ``error`` then says what it was, and not before the steps
        that they have in flight were read; the blocks keep what was computed in earlier steps.
        """
        launched, failure = self._launch(chunks)
        if failure is not None:
            outcome = self.read_all()
            self._fail(chunks, failure, outcome)
            return outcome
        assert launched is not None
        self._flights.append(launched)
        return Outcome() if self._config.pipelined else self.read()

    def read(self) -> Outcome:
        """Wait for the oldest step in flight, serving :attr:`meanwhile` until then, and enter what it brought."""
        outcome = self._read(self._flights[0], self.meanwhile)
        self._flights.popleft()  # in flight until then: whoever comes meanwhile finds the device at work
        return outcome

    def read_all(self) -> Outcome:
        """Wait for all that is in flight, with nobody between, and enter what it brought."""
        outcome = Outcome()
        while self._flights:
            outcome.add(self._read(self._flights[0]))
            self._flights.popleft()
        return outcome

    def mark_of(self, number: int) -> object | None:
        """The mover's mark behind launch ``number``, which is in flight; ``None`` for what is launched by now."""
        return next((flight.mark for flight in self._flights if flight.number >= number), None)

    def has_room(self, sequence: Sequence) -> bool:
        """Whether its next position lies inside its table."""
        return sequence.launched < len(sequence.table) * self._cache.block_tokens

    def goes_on(self, sequence: Sequence) -> bool:
        """Whether it will need another position; a stop token that nobody has read yet is not foreseen."""
        return sequence.pending > 0 and sequence.usage.output_tokens + sequence.unread < sequence.sampling.max_tokens

    def _launch(self, chunks: Seq[Chunk]) -> tuple[_Flight | None, Exception | None]:
        started_ns = self._clock.unix_ns()
        fences, self._fences = self._fences, []
        self._cache.placement.device.launches += 1  # whatever becomes of it: some of its kernels may run
        number = self._cache.placement.device.launches
        running = self._requests.running
        for chunk in chunks:
            running[chunk.sequence_id].last_launch = number
        try:
            pending = self._runner.launch(chunks, fences)
        except Exception as error:  # the runner is foreign code, and the other requests must go on
            return None, error
        for chunk in chunks:
            running[chunk.sequence_id].launched = chunk.start + len(chunk.tokens)
            running[chunk.sequence_id].unread += chunk.sample
        attempts = {chunk.sequence_id: running[chunk.sequence_id].attempt for chunk in chunks}
        self._tally.steps += 1
        self.on_launch(chunks)
        return _Flight(tuple(chunks), pending, started_ns, number, self.mark(), attempts, bool(fences)), None

    def _read(self, flight: _Flight, meanwhile: Callable[[float], object] | None = None) -> Outcome:
        while (meanwhile is not None and not _over(flight.pending)) or self._arrives(flight):
            # The copies that it waits for are taken off the books while it runs on: it ends no sooner than they do.
            (meanwhile or self.wait)(_LOOK_S if meanwhile else _WAIT_S)
            if flight.early:
                self.collect()
        try:
            sampled = flight.pending.tokens()
        except Exception as error:  # as above
            outcome = Outcome()
            self._fail(self._valid(flight), error, outcome)
            return outcome
        self.written = flight.mark
        self.settled = flight.number, flight.mark
        chunks, running = self._valid(flight), self._requests.running
        sampled = {one.sequence_id: sampled[one.sequence_id] for one in chunks if one.sequence_id in sampled}
        self.on_tokens({number: token for number, token in sampled.items() if not _stops(running[number], token)})
        # Count first: what one request computes in this step did not exist before it for another.
        prefilled = sum(self._count(running[chunk.sequence_id], chunk) for chunk in chunks)
        now_ns = self._clock.unix_ns()
        took_s = (now_ns - max(flight.started_ns, self._read_ns)) / 1e9
        self._read_ns = now_ns
        self._tally.prefill_s += took_s * prefilled / sum(len(chunk.tokens) for chunk in flight.chunks)
        for chunk in chunks:
            self._enter(running[chunk.sequence_id], chunk)
        return self._accept(sampled)

    def _arrives(self, flight: _Flight) -> bool:
        """Whether it waits for copies that are not known to be over: until then nobody can tell whether it counts."""
        running = self._requests.running
        return flight.early and any(running[chunk.sequence_id].waits for chunk in self._valid(flight))

    def _valid(self, flight: _Flight) -> list[Chunk]:
        """The chunks that still count: who was aborted is gone, who ended one step earlier had one position too many."""
        running, attempts = self._requests.running, flight.attempts
        numbers = {number for number in attempts if number in running and running[number].attempt == attempts[number]}
        return [chunk for chunk in flight.chunks if chunk.sequence_id in numbers]

    def _fail(self, chunks: Seq[Chunk], error: Exception, outcome: Outcome) -> None:
        """End the requests of a step that could not be computed, but for those that have ended anyhow."""
        running = self._requests.running
        for sequence in [running[chunk.sequence_id] for chunk in chunks if chunk.sequence_id in running]:
            sequence.error = f"{type(error).__name__}: {error}"
            self._requests.finish(sequence, "error", self._clock.unix_ns())
            outcome.finished.append(sequence)

    def _ready(self) -> list[Sequence]:
        return [one for one in self._requests.running.values() if one.status is SequenceStatus.RUNNING]

    def _shares(self, sequences: Seq[Sequence]) -> tuple[Share, ...]:
        config = self._config
        decoding = sum(one.pending == 1 for one in sequences)
        limit = step_limit(decoding, config.slots, config.step_tokens, config.mixed_step_tokens)
        return plan_shares(((one.id, one.pending) for one in sequences), limit)

    def _start_early(self, sequence: Sequence, fence: Fence) -> None:
        """Let it run in the next step, which waits for ``fence``."""
        self._requests.start_early(sequence, self._clock.unix_ns())
        self._fences.append(fence)

    def _arriving(self) -> dict[int, tuple[Sequence, Fence]]:
        """The requests whose missing KV is all on its way on the device, and what to wait for there, by id."""
        found = {}
        for one in self._requests.running.values():
            # Who would find more of its prompt in the cache than it waits for takes that over first. A chooser looks at
            # each token when it is launched: it would wait here, and remember the token of a step that became void.
            if one.status is SequenceStatus.RESTORING and one.sampling.chooser is None and not self._finds_more(one):
                fence = self.fence(one.waits)
                if fence is not None:
                    found[one.id] = (one, fence)
        return found

    def _can_go_on(self, sequence: Sequence) -> bool:
        if not (self.has_room(sequence) and self.goes_on(sequence)):
            return False
        # A prefill whose last step is not read cannot yet take over what the cache has of it.
        return not (sequence.in_flight and self._finds_more(sequence))

    def _finds_more(self, sequence: Sequence) -> bool:
        """Whether the cache has the next block of a prefill."""
        at = sequence.launched // self._cache.block_tokens
        if sequence.pending <= 1 or at >= len(sequence.keys):
            return False
        return sequence.keys[at] in self._cache.placement.index

    def _without_twins(self, candidates: Seq[Sequence]) -> list[Sequence]:
        """The candidates but for those whose next block an older one is about to compute: they take it over then.

        The older one has its share of this step, or an even older one has, so that nobody waits for ever.
        """
        coming: set[bytes] = set()
        chosen = []
        block_tokens = self._cache.block_tokens
        for one in sorted(candidates, key=lambda sequence: sequence.id):
            left = one.keys[one.launched // block_tokens :] if one.pending > 1 else []
            if not left or left[0] not in coming:
                chosen.append(one)
                if self.has_room(one):
                    coming.update(left)
            if one.in_flight:
                coming.update(one.keys[one.computed // block_tokens :])
        return chosen

    def _chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        start, sampling = sequence.launched, sequence.sampling
        known = tuple(sequence.tokens[start : start + tokens])
        return Chunk(
            sequence_id=sequence.id,
            tokens=known if len(known) == tokens else (*known, UNREAD),
            start=start,
            table=tuple(sequence.table),
            write_from=sequence.write_from,
            sample=tokens == sequence.pending,
            sampling=sampling,
            seed=self._config.seed if sampling.seed is None else sampling.seed,
            generated=len(sequence.tokens) + sequence.unread - sequence.prompt_tokens,
        )

    def _count(self, sequence: Sequence, chunk: Chunk) -> int:
        """Count how many of the chunk's positions were prefilled, and how many of these had KV before."""
        end = min(chunk.start + len(chunk.tokens), sequence.known)
        if end <= chunk.start:
            return 0
        start = max(chunk.start, sequence.write_from)
        again = self._past.repeated(sequence, start, end) if start < end else 0
        prefilled = end - chunk.start
        sequence.usage.prefilled_tokens += prefilled
        sequence.usage.reprefilled_tokens += again
        self._tally.prefilled_tokens += prefilled
        self._tally.reprefilled_tokens += again
        return prefilled

    def _enter(self, sequence: Sequence, chunk: Chunk) -> None:
        before = sequence.committed_blocks
        sequence.computed = chunk.start + len(chunk.tokens)
        sequence.unread -= chunk.sample
        pieces = self._cache.commit(sequence)
        self._past.blocks_computed(sequence.keys[before : sequence.committed_blocks])
        self._parking.filled(sequence.agent, pieces, self._read_ns)

    def _accept(self, sampled: dict[int, int]) -> Outcome:
        now = self._clock.unix_ns()
        tokens: dict[int, int] = {}
        reasons: dict[int, str] = {}
        for number, token in sampled.items():
            sequence = self._requests.running[number]
            if _stops(sequence, token):
                reasons[number] = "stop"
                continue
            tokens[number] = token
            sequence.tokens.append(token)
            sequence.usage.output_tokens += 1
            self._sessions.agents[sequence.agent].rate.add(now, 1)
            if sequence.usage.output_tokens == sequence.sampling.max_tokens:
                reasons[number] = "length"
        self._tally.generated_tokens += len(tokens)
        return Outcome(list(tokens.items()), self._finish(reasons, now))

    def _finish(self, reasons: dict[int, str], now_ns: int) -> list[Sequence]:
        finished = [self._requests.running[number] for number in reasons]
        for sequence in finished:
            self._requests.finish(sequence, reasons[sequence.id], now_ns)
        return finished


def _over(pending: Pending) -> bool:
    """Whether it can be read without waiting."""
    try:
        return pending.done()
    except Exception:  # a device that has failed: reading it will tell
        return True


def _stops(sequence: Sequence, token: int) -> bool:
    """Whether the token ends its output, and is no part of it."""
    return token in sequence.sampling.stop_ids and not sequence.sampling.ignore_eos
