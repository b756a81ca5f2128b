"""One forward step: chunks from requests, and what its results mean for them. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtrace.tracer.clock import Clock

from .batch import Chunk, Runner
from .config import EngineConfig
from .meters import Tally
from .parking import Parking
from .past import Past
from .requests import Requests
from .scheduler import plan_shares
from .sequence import Sequence, SequenceStatus
from .sessions import Sessions
from .tiers import TieredCache


class Forward:
    """Builds chunks for the requests that can run, runs them, and enters what was computed."""

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

    def chunks(self, now_ns: int) -> list[Chunk]:
        """This step's work; requests that restore, or that wait for a block, have no part in it."""
        for sequence in self._ready():
            if sequence.pending > 1:
                self._requests.rematch(sequence, now_ns)
        pending = [(one.id, one.pending) for one in self._without_twins() if self.has_room(one)]
        shares = plan_shares(pending, self._config.step_tokens)
        return [self._chunk(self._requests.running[share.id], share.tokens) for share in shares]

    def run(self, chunks: Seq[Chunk]) -> tuple[dict[int, int], list[Sequence]]:
        """Compute ``chunks``: the new output token of each request that has one, and the requests this finished.

        An exception of the runner ends the requests of this step, whose ``error`` then says what it was; the
        blocks keep what was computed in earlier steps.
        """
        running = self._requests.running
        started_ns = self._clock.unix_ns()
        try:
            sampled = self._runner.run(chunks)
        except Exception as error:  # the runner is foreign code, and the other requests must go on
            failed = [running[chunk.sequence_id] for chunk in chunks]
            for sequence in failed:
                sequence.error = f"{type(error).__name__}: {error}"
                self._requests.finish(sequence, "error", self._clock.unix_ns())
            return {}, failed
        # Count first: what one request computes in this step did not exist before it for another.
        prefilled = sum(self._count(running[chunk.sequence_id], chunk) for chunk in chunks)
        took_s = (self._clock.unix_ns() - started_ns) / 1e9
        self._tally.prefill_s += took_s * prefilled / sum(len(chunk.tokens) for chunk in chunks)
        for chunk in chunks:
            self._enter(running[chunk.sequence_id], chunk.start + len(chunk.tokens))
        return self._accept(sampled)

    def has_room(self, sequence: Sequence) -> bool:
        """Whether its next position lies inside its table."""
        return sequence.computed < len(sequence.table) * self._cache.block_tokens

    def _ready(self) -> list[Sequence]:
        return [one for one in self._requests.running.values() if one.status is SequenceStatus.RUNNING]

    def _without_twins(self) -> list[Sequence]:
        """The ready requests but for those whose next block an older one is about to compute: they take it over then.

        The older one has its share of this step, or an even older one has, so that nobody waits for ever.
        """
        coming: set[bytes] = set()
        chosen = []
        for one in sorted(self._ready(), key=lambda sequence: sequence.id):
            left = one.keys[one.computed // self._cache.block_tokens :] if one.pending > 1 else []
            if not left or left[0] not in coming:
                chosen.append(one)
                if self.has_room(one):
                    coming.update(left)
        return chosen

    def _chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        start, sampling = sequence.computed, sequence.sampling
        return Chunk(
            sequence_id=sequence.id,
            tokens=tuple(sequence.tokens[start : start + tokens]),
            start=start,
            table=tuple(sequence.table),
            write_from=sequence.write_from,
            sample=start + tokens == len(sequence.tokens),
            sampling=sampling,
            seed=self._config.seed if sampling.seed is None else sampling.seed,
            generated=len(sequence.tokens) - sequence.prompt_tokens,
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

    def _enter(self, sequence: Sequence, computed: int) -> None:
        before = sequence.committed_blocks
        sequence.computed = computed
        pieces = self._cache.commit(sequence)
        self._past.blocks_computed(sequence.keys[before : sequence.committed_blocks])
        self._parking.filled(sequence.agent, pieces)

    def _accept(self, sampled: dict[int, int]) -> tuple[dict[int, int], list[Sequence]]:
        now = self._clock.unix_ns()
        tokens: dict[int, int] = {}
        reasons: dict[int, str] = {}
        for number, token in sampled.items():
            sequence = self._requests.running[number]
            if token in sequence.sampling.stop_ids and not sequence.sampling.ignore_eos:
                reasons[number] = "stop"
                continue
            tokens[number] = token
            sequence.tokens.append(token)
            sequence.usage.output_tokens += 1
            self._sessions.agents[sequence.agent].rate.add(now, 1)
            if sequence.usage.output_tokens == sequence.sampling.max_tokens:
                reasons[number] = "length"
        self._tally.generated_tokens += len(tokens)
        return tokens, self._finish(reasons, now)

    def _finish(self, reasons: dict[int, str], now_ns: int) -> list[Sequence]:
        finished = [self._requests.running[number] for number in reasons]
        for sequence in finished:
            self._requests.finish(sequence, reasons[sequence.id], now_ns)
        return finished
