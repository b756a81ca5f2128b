"""Who gets a slot and blocks before a step, and whose KV comes back ahead of its slot. Torch-free.

Decides by :mod:`.scheduler` and carries it out on the cache. docs/policy.md has the measurements behind each rule.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from kvtrace.tracer.clock import Clock

from .config import EngineConfig, PolicyMode
from .forward import Forward, Outcome
from .geometry import KVGeometry
from .outlook import Outlooks
from .parking import Parking
from .requests import Requests
from .scheduler import MemoryPlan, MemoryView, Running, Waiting, paused_newcomers, plan_memory, waiting_order
from .sequence import Sequence, SequenceStatus
from .sessions import Sessions
from .tiers import TieredCache

BACK_S: Final = 30.0
"""A new agent waits only for those that are expected back within so many seconds."""

PAUSE_NS: Final = 60_000_000_000
"""A new agent is paused for so long at most."""


class Admission:
    """The waiting requests' way to the running ones."""

    def __init__(
        self,
        config: EngineConfig,
        geometry: KVGeometry,
        clock: Clock,
        cache: TieredCache,
        sessions: Sessions,
        requests: Requests,
        forward: Forward,
        parking: Parking,
        outlooks: Outlooks,
    ) -> None:
        self._config, self._geometry, self._clock = config, geometry, clock
        self._cache, self._sessions, self._requests = cache, sessions, requests
        self._forward, self._parking, self._outlooks = forward, parking, outlooks
        self._turn_ns = int(config.turn_handicap_s * 1e9)
        self._room = config.device_blocks + config.host_blocks

    def hand_out(self, outcome: Outcome) -> bool:
        """Preempt, grow and admit; whether anything but growth came of it. Steps that must be read first are added to ``outcome``."""
        order = self._order()
        view = self._view(order)
        plan = plan_memory(view)
        if plan.preempt and self._forward.in_flight:
            # A block is taken away only when what was launched for it is known, and that may end who wanted it.
            outcome.add(self._forward.read_all())
            order = self._order()
            view = self._view(order)
            plan = plan_memory(view)
        return self._carry_out(plan, view, order)

    def let_in(self) -> bool:
        """Admit who finds a slot and blocks while a step is under way; whether anybody did. Nobody is preempted."""
        if len(self._requests.running) >= self._slots():
            return False
        order = self._order()
        view = self._view(order)
        plan = plan_memory(view)
        return not plan.preempt and self._carry_out(plan, view, order)

    def _carry_out(self, plan: MemoryPlan, view: MemoryView, order: list[int]) -> bool:
        now = self._clock.unix_ns()
        requests = self._requests
        wanted = sum(one.demand for one in view.waiting) + len(plan.grow)
        self._parking.make_room(wanted - len(self._cache.placement.device.free), now)
        for number in plan.preempt:
            requests.preempt(requests.running[number], now)
        for number in plan.grow:
            self._cache.grow(requests.running[number])
        admitted = False
        later: tuple[int, ...] = ()
        for at, number in enumerate(plan.admit, 1):
            waiting = requests.waiting[number]
            if not requests.admit(waiting, self._first_blocks(waiting), now):
                break
            admitted = True
            if waiting.waits and self._forward.in_flight:
                later = plan.admit[at:]  # one restore at a time; they fit, and lack nothing
                break
        left = {one.id: one.demand for one in view.waiting if one.id in requests.waiting and one.id not in later}
        self._outlooks.short_blocks = sum(left.values())
        self._parking.crowded = len(requests.waiting) > len(later)
        if not left and not plan.preempt and not admitted:
            self._restore_ahead(order, now)
        return bool(plan.preempt) or admitted

    def _order(self) -> list[int]:
        agents, waiting = self._sessions.agents, self._requests.waiting.values()
        order = waiting_order(
            ((one.id, len(agents[one.agent].cycles), one.arrived_unix_ns) for one in waiting), self._turn_ns
        )
        paused = self._paused(order) if order else frozenset()
        return [number for number in order if number not in paused]

    def _paused(self, order: list[int]) -> Set[int]:
        """Requests of new agents that have to wait until others are through with their turns."""
        auto = self._config.policy is PolicyMode.AUTO
        limited = auto or self._config.max_agents is not None
        fresh = [one for one in map(self._requests.waiting.__getitem__, order) if limited and self._is_new(one)]
        if not fresh:
            return frozenset()
        now, under_way = self._clock.unix_ns(), self._under_way()
        newcomers = [(one.id, one.agent, self._first_blocks(one)) for one in fresh]
        room = self._room if auto else None
        paused = paused_newcomers(newcomers, under_way, self._config.max_agents, room)
        if not paused:
            return paused
        # Who comes back late holds nobody up, and nobody is held up for long. Looked at only where it matters.
        soon = {agent: blocks for agent, blocks in under_way.items() if self._outlooks.back_within(agent, BACK_S, now)}
        patient = [one for one in newcomers if now - self._requests.waiting[one[0]].arrived_unix_ns < PAUSE_NS]
        return paused_newcomers(patient, soon, self._config.max_agents, room)

    def _under_way(self) -> dict[str, int]:
        """The agents in the middle of their turns, and the blocks of their contexts."""
        blocks = {one.agent: len(one.table) for one in self._requests.running.values()}
        for agent in (*self._sessions.blocked_agents(), *self._requests.live):
            if self._cache.claims.of(agent) is not None:
                context = self._geometry.blocks_for(self._cache.context_tokens(agent))
                blocks[agent] = max(blocks.get(agent, 0), context)
        return blocks

    def _is_new(self, sequence: Sequence) -> bool:
        return not self._cache.knows(sequence) and len(self._requests.live[sequence.agent]) == 1

    def _view(self, order: list[int]) -> MemoryView:
        placement, requests = self._cache.placement, self._requests
        slots = self._slots()
        candidates = [requests.waiting[number] for number in order[: slots - len(requests.running)]]
        available, leaving = placement.available, placement.device.leaving
        coming = len(placement.device.busy) - leaving
        return MemoryView(
            running=self._running_views(available + coming),
            waiting=tuple(Waiting(one.id, self._cache.demand(one, self._first_blocks(one))) for one in candidates),
            available=available,
            coming=coming,
            slots=slots,
        )

    def _slots(self) -> int:
        """Who has its last token in a step in flight has no part in the next one: its slot is free already."""
        return self._config.slots + sum(not self._forward.goes_on(one) for one in self._requests.running.values())

    def _running_views(self, blocks_left: int) -> tuple[Running, ...]:
        running = self._requests.running.values()
        grows = {one.id for one in running if self._grows(one)}
        # Counting what each table would yield is the dearest part of an easy step, and only preemption asks.
        short = len(grows) > blocks_left
        return tuple(Running(one.id, one.id in grows, self._cache.yields(one) if short else 0) for one in running)

    def _grows(self, sequence: Sequence) -> bool:
        running = sequence.status is SequenceStatus.RUNNING
        return running and not self._forward.has_room(sequence) and self._forward.goes_on(sequence)

    def _first_blocks(self, sequence: Sequence) -> int:
        """Blocks of its first table: room for its tokens and the next, but never more than it can need."""
        return self._geometry.blocks_for(min(len(sequence.tokens) + 1, sequence.most_kv_tokens))

    def _restore_ahead(self, order: list[int], now_ns: int) -> None:
        """Bring back the KV of who is next when a slot is free, as far as nobody who runs needs the room."""
        first = next((number for number in order if number in self._requests.waiting), None)
        room = self._cache.placement.available - len(self._requests.running)
        if first is not None and room > 0:
            self._parking.restore_ahead(self._requests.waiting[first].agent, room, now_ns)
