"""The live requests: who waits, who holds blocks, and every change between the two. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from .claims import Phase
from .findings import Hits
from .meters import Tally
from .parking import Parking
from .past import Past
from .policy import Moment
from .records import AgentState
from .sequence import Sequence, SequenceStatus
from .sessions import Sessions, Transition
from .swap.contract import CopyDone, Direction
from .tiers import TieredCache

_ACTIVITY: Final = {
    SequenceStatus.RUNNING: AgentState.GENERATING,
    SequenceStatus.RESTORING: AgentState.RESTORING,
    SequenceStatus.WAITING: AgentState.QUEUED,
}


class Requests:
    """All requests that are not finished: ``waiting`` without blocks, ``running`` with a slot and blocks, by id.

    ``live`` has both by agent. Instants are unix ns.
    """

    def __init__(self, cache: TieredCache, sessions: Sessions, parking: Parking, past: Past, tally: Tally) -> None:
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.live: dict[str, list[Sequence]] = {}
        self._cache = cache
        self._sessions = sessions
        self._parking = parking
        self._past = past
        self._tally = tally

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.running.values(), self.waiting.values())

    def find(self, sequence_id: int) -> Sequence | None:
        """The live request of this id."""
        return self.running.get(sequence_id) or self.waiting.get(sequence_id)

    def add(self, sequence: Sequence, now_ns: int) -> None:
        """Queue a new request; its agent is back, if it was away."""
        self.waiting[sequence.id] = sequence
        self.live.setdefault(sequence.agent, []).append(sequence)
        sequence.waiting_since_unix_ns = sequence.since_unix_ns = now_ns
        returned = self._sessions.request(sequence.agent, now_ns)
        self._cache.claims.set_phase(sequence.agent, Phase.ACTIVE)
        if returned is not None:
            self._parking.changed(returned, now_ns)
        self._show_activity(sequence.agent, now_ns)

    def admit(self, sequence: Sequence, blocks: int, now_ns: int) -> bool:
        """Give a waiting request a slot and a table of ``blocks`` blocks; ``False`` while space is short."""
        hits = self._cache.acquire(sequence, blocks)
        if hits is None:
            return False
        self.running[sequence.id] = self.waiting.pop(sequence.id)
        # What a preempted request finds again was its own: no prompt token was saved.
        if sequence.known == sequence.prompt_tokens:
            self._count_hits(sequence, hits)
        self._parking.admitted(sequence.agent, hits, now_ns)
        if sequence.waits:
            self._turn(sequence, SequenceStatus.RESTORING, now_ns)
        else:
            self._run(sequence, now_ns)
        self._show_activity(sequence.agent, now_ns)
        return True

    def rematch(self, sequence: Sequence, now_ns: int) -> None:
        """Let a running prefill take over blocks that exist by now; it pauses where they must be copied in."""
        hits = self._cache.rematch(sequence)
        self._count_hits(sequence, hits)
        if hits.host_tokens:
            self._parking.admitted(sequence.agent, hits, now_ns)
        if sequence.waits:
            self._turn(sequence, SequenceStatus.RESTORING, now_ns)
            sequence.waiting_since_unix_ns = now_ns
            self._show_activity(sequence.agent, now_ns)

    def start_early(self, sequence: Sequence, now_ns: int) -> None:
        """Let a request run whose copies are on the device, which waits for them; the books await their ends as before."""
        self._run(sequence, now_ns)
        self._show_activity(sequence.agent, now_ns)

    def arrived(self, ended: Mapping[int, CopyDone], now_ns: int) -> None:
        """Copies, by their ids, ended: who waited for the last one may run, who waited for one that failed starts over."""
        for sequence in [one for one in self.running.values() if one.waits]:
            mine = sequence.waits & ended.keys()
            if not mine:
                continue
            sequence.waits -= mine
            failed = [one.copy for one in map(ended.__getitem__, mine) if one.error is not None]
            lost = [sequence.table.index(copy.device_block) for copy in failed if copy.direction is Direction.IN]
            if lost:
                # These blocks hold nothing: what lies before them is kept, the rest is looked up or computed again.
                at = min(lost)
                sequence.computed = sequence.launched = sequence.write_from = at * self._cache.block_tokens
                self._requeue(sequence, now_ns)
            elif not sequence.waits and sequence.status is SequenceStatus.RESTORING:
                self._run(sequence, now_ns)
            else:
                continue
            self._show_activity(sequence.agent, now_ns)

    def preempt(self, sequence: Sequence, now_ns: int) -> None:
        """Take a running request's slot and blocks; it waits again, with its KV cached."""
        self._parking.preempted(sequence.agent, len(sequence.table), now_ns)
        self._requeue(sequence, now_ns)
        self._show_activity(sequence.agent, now_ns)

    def finish(self, sequence: Sequence, reason: str, now_ns: int) -> None:
        """End a request in whatever state it is; what it computed stays cached."""
        if sequence.status is not SequenceStatus.RUNNING:
            self._close_wait(sequence, now_ns)
        siblings = self.live[sequence.agent]
        siblings.remove(sequence)
        phase = Phase.ACTIVE if siblings else Phase.RESTING
        if not siblings:
            del self.live[sequence.agent]
        if sequence.id in self.running:
            self._release(sequence, phase)
            del self.running[sequence.id]
        else:
            self._cache.give_up(sequence, phase, alone=not siblings)
            del self.waiting[sequence.id]
        self._turn(sequence, SequenceStatus.FINISHED, now_ns)
        sequence.finish_reason = reason
        self._show_activity(sequence.agent, now_ns)
        session = self._sessions.agents[sequence.agent]
        if session.blocked and not siblings:
            self._parking.changed(Transition(sequence.agent, Moment.TOOL_STARTED, session.tool), now_ns)
        elif not siblings:
            self._parking.ended(sequence.agent, reason, now_ns)

    def _run(self, sequence: Sequence, now_ns: int) -> None:
        self._turn(sequence, SequenceStatus.RUNNING, now_ns)
        self._close_wait(sequence, now_ns)

    def _turn(self, sequence: Sequence, status: SequenceStatus, now_ns: int) -> None:
        """Take another status, and note how long it waited in the one before."""
        seconds = (now_ns - sequence.since_unix_ns) / 1e9
        if sequence.status is SequenceStatus.WAITING:
            sequence.usage.queued_s += seconds
        elif sequence.status is SequenceStatus.RESTORING:
            sequence.usage.restoring_s += seconds
        sequence.status, sequence.since_unix_ns = status, now_ns

    def _requeue(self, sequence: Sequence, now_ns: int) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            sequence.waiting_since_unix_ns = now_ns
        sequence.known = max(sequence.known, sequence.kv_tokens)
        self._release(sequence, Phase.ACTIVE, preempted=True)
        sequence.attempt += 1
        self.waiting[sequence.id] = self.running.pop(sequence.id)
        self._turn(sequence, SequenceStatus.WAITING, now_ns)

    def _release(self, sequence: Sequence, phase: Phase, *, preempted: bool = False) -> None:
        context = sequence.tokens[: sequence.kv_tokens]
        self._cache.release(sequence, phase, preempted=preempted)
        self._past.context_computed(sequence.agent, context, sequence.keys)

    def _close_wait(self, sequence: Sequence, now_ns: int) -> None:
        if now_ns > sequence.waiting_since_unix_ns:
            sequence.usage.wait_intervals_unix_ns.append((sequence.waiting_since_unix_ns, now_ns))

    def _count_hits(self, sequence: Sequence, hits: Hits) -> None:
        """Count prompt tokens that the cache had; the one that a full hit computes all the same is not among them."""
        again = sequence.write_from > sequence.computed
        host = hits.host_tokens - (again and hits.host_tokens > 0)
        device = hits.device_tokens - (again and hits.host_tokens == 0 and hits.device_tokens > 0)
        sequence.usage.cached_device_tokens += device
        sequence.usage.cached_host_tokens += host
        self._tally.cached_device_tokens += device
        self._tally.cached_host_tokens += host

    def _show_activity(self, agent: str, now_ns: int) -> None:
        session = self._sessions.agents[agent]
        statuses = {sequence.status for sequence in self.live.get(agent, ())}
        session.activity = next((state for status, state in _ACTIVITY.items() if status in statuses), None)
        session.refresh(now_ns)
