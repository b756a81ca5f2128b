"""Recorded work played on a rig under a policy: what its KV movement costs, and what the freed memory buys.

A discrete-event simulation. Agents generate on slots, first come first served, for as long as the trace says; what a
policy lets leave the device has to come back over the link or be computed again before an agent can go on. Copies one
way share the link, computing again shares the card's prefill; neither slows generation, which real ones do a little.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from .policy import Facts, Hold, Moment, Policy
from .pool import Holder, Pool, Rank
from .work import AgentWork, Turn, alone_s


@dataclass(frozen=True, slots=True)
class ReplayRig:
    """A rig in blocks: sizes of both tiers, seconds to copy a block one way and to compute it again.

    ``state_blocks`` are what every sequence keeps beside its tokens. ``agents`` are in progress at a time; the next one
    starts when one is through.
    """

    device_blocks: int
    host_blocks: int
    slots: int
    agents: int
    block_tokens: int
    block_bytes: int
    state_blocks: int
    copy_s: float
    compute_s: float

    def blocks_for(self, tokens: int) -> int:
        """Blocks of a context; one that exceeds the pool is cut to it."""
        return min(-(-tokens // self.block_tokens) + self.state_blocks, self.device_blocks)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What became of the work under one policy.

    ``lost_s`` is what all agents together waited beside their own work: ``moving_s`` for copies and recomputing,
    ``queued_s`` for a slot or for room. ``agents_served`` is the mean number of agents that progress at the pace they
    have alone. ``idle_gb_s`` is the blocked agents' cache times their waits, ``freed_gb_s`` the part of it that was not
    in VRAM. ``unknown_actions`` are wishes of the policy that the replay does not know and left out.
    """

    policy: str
    agents: int
    makespan_s: float
    turns_per_s: float
    agents_served: float
    lost_s: float
    moving_s: float
    queued_s: float
    bytes_out: int
    bytes_in: int
    recomputed_tokens: int
    idle_gb_s: float
    freed_gb_s: float
    unknown_actions: tuple[str, ...]


def replay(work: Sequence[AgentWork], rig: ReplayRig, policy: Policy) -> ReplayResult:
    """Play ``work`` on ``rig`` under ``policy``. Raises ``ValueError`` where the rig holds nothing or there is no work."""
    if rig.device_blocks < 1 or rig.slots < 1 or rig.agents < 1:
        raise ValueError("a replay needs at least one block of VRAM, one slot and one agent")
    if not alone_s(work):
        raise ValueError("a replay needs turns that take time")
    stage = _Stage(work, rig, policy)
    stage.play()
    return stage.result()


@dataclass(slots=True)
class _Lane:
    """Something that does one thing after the other."""

    free_s: float = 0.0

    def run(self, now_s: float, seconds: float) -> float:
        """When ``seconds`` of work asked for now will be done."""
        if seconds:
            self.free_s = max(self.free_s, now_s) + seconds
            return self.free_s
        return now_s


@dataclass(slots=True, eq=False)
class _Player:
    """An agent on stage: its cache, and where in its work it is."""

    work: AgentWork
    cache: Holder
    turn: int = 0
    asked_s: float = 0.0
    blocked_s: float = 0.0

    @property
    def now(self) -> Turn:
        return self.work.turns[self.turn]


class _Stage:
    """Everything that changes while the work is played."""

    def __init__(self, work: Sequence[AgentWork], rig: ReplayRig, policy: Policy) -> None:
        self._work, self._rig, self._policy = work, rig, policy
        self._pool = Pool(rig.device_blocks, rig.host_blocks if policy.uses_host else 0)
        self._out, self._in, self._prefill = _Lane(), _Lane(), _Lane()
        self._waiting = deque(each for each in work if each.turns)
        self._asking: deque[_Player] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now_s = self._ended_s = 0.0
        self._slots = rig.slots
        self._moving_s = self._queued_s = 0.0
        self._blocks_out = self._blocks_in = self._recomputed = self._turns = 0
        self._unknown: dict[str, None] = {}

    def play(self) -> None:
        for _ in range(min(self._rig.agents, len(self._waiting))):
            self._begin()
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()

    def result(self) -> ReplayResult:
        rig, pool = self._rig, self._pool
        gigabytes = rig.block_bytes / 1e9
        return ReplayResult(
            policy=self._policy.name,
            agents=min(rig.agents, len(self._work)),
            makespan_s=self._ended_s,
            turns_per_s=self._turns / self._ended_s,
            agents_served=alone_s(self._work) / self._ended_s,
            lost_s=self._moving_s + self._queued_s,
            moving_s=self._moving_s,
            queued_s=self._queued_s,
            bytes_out=self._blocks_out * rig.block_bytes,
            bytes_in=self._blocks_in * rig.block_bytes,
            recomputed_tokens=self._recomputed * rig.block_tokens,
            idle_gb_s=pool.idle_block_s * gigabytes,
            freed_gb_s=pool.vacated_block_s * gigabytes,
            unknown_actions=tuple(self._unknown),
        )

    def _at(self, when_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), happen))

    def _begin(self) -> None:
        if self._waiting:
            work = self._waiting.popleft()
            player = _Player(work, Holder(work.agent))
            self._pool.join(player.cache)
            self._at(self._now_s, lambda: self._ask(player))

    def _ask(self, player: _Player) -> None:
        """The agent's next request has come."""
        player.asked_s = self._now_s
        self._asking.append(player)
        self._admit()

    def _admit(self) -> None:
        while self._asking and self._slots and self._generate(self._asking[0]):
            self._asking.popleft()

    def _generate(self, player: _Player) -> bool:
        """Start a turn; false where there is no room for it yet."""
        cache, needed = player.cache, self._rig.blocks_for(player.now.tokens)
        self._pool.shorten(cache, needed, self._now_s)
        held = cache.device
        usable_s = self._pool.take(cache, needed - held, self._now_s, Rank.ACTIVE)
        if usable_s is None:
            return False
        begins_s = max(usable_s, cache.arrives_s, self._bring_back(cache, held, usable_s))
        self._queued_s += self._now_s - player.asked_s
        self._moving_s += begins_s - self._now_s
        self._slots -= 1
        cache.rank, cache.blocks = Rank.ACTIVE, needed
        self._at(begins_s + player.now.generate_s, lambda: self._pause(player))
        return True

    def _bring_back(self, cache: Holder, held: int, usable_s: float) -> float:
        """When everything the agent once had is on the device: first the copy, then what no tier has."""
        copied = max(0, min(cache.host, cache.blocks) - held)
        lost = cache.blocks - max(held, min(cache.host, cache.blocks))
        self._blocks_in += copied
        self._recomputed += lost
        there_s = self._in.run(max(usable_s, cache.copied_s if copied else 0.0), copied * self._rig.copy_s)
        return self._prefill.run(there_s, lost * self._rig.compute_s)

    def _pause(self, player: _Player) -> None:
        """A turn's tokens are generated: the slot is free, and a tool may begin."""
        turn, cache = player.now, player.cache
        self._turns += 1
        self._slots += 1
        cache.rank, cache.touched_s = Rank.RESTING, self._now_s
        self._decide("filled", player)
        if turn.wait_s:
            cache.blocked, cache.counted_s = True, self._now_s
            player.blocked_s = self._now_s
            self._decide("tool_started", player)
            self._at(self._now_s + turn.wait_s, lambda: self._return(player))
        else:
            self._go_on(player)
        self._admit()

    def _return(self, player: _Player) -> None:
        """The agent's tool has ended."""
        self._pool.count(player.cache, self._now_s)
        player.cache.blocked = False
        self._decide("returned", player)
        self._go_on(player)
        self._admit()

    def _go_on(self, player: _Player) -> None:
        pause_s = player.now.pause_s
        player.turn += 1
        if player.turn < len(player.work.turns):
            self._at(self._now_s + pause_s, lambda: self._ask(player))
        else:
            self._at(self._now_s + pause_s, lambda: self._end(player))

    def _end(self, player: _Player) -> None:
        self._ended_s = self._now_s
        self._pool.leave(player.cache)
        self._begin()
        self._admit()

    def _decide(self, moment: Moment, player: _Player) -> None:
        cache = player.cache
        facts = Facts(
            *(cache.agent, player.now.tool, cache.blocks, cache.device, cache.host),
            now_s=self._now_s,
            waited_s=self._now_s - player.blocked_s,
            copy_s=self._rig.copy_s,
            compute_s=self._rig.compute_s,
            short=self._short(),
        )
        for action in self._policy.actions(moment, facts):
            if isinstance(action, Hold):
                self._at(self._now_s + action.seconds, partial(self._overdue, player, player.turn))
            else:
                self._act(action, cache)

    def _overdue(self, player: _Player, turn: int) -> None:
        """A hold is over; the agent may still wait for that tool."""
        if player.cache.blocked and player.turn == turn:
            self._decide("overdue", player)
            self._admit()

    def _short(self) -> float:
        """Share of the device that the next request lacks though it could have a slot."""
        if not self._asking or not self._slots:
            return 0.0
        cache = self._asking[0].cache
        needed = self._rig.blocks_for(self._asking[0].now.tokens) - cache.device
        return max(0, needed - self._pool.room(cache, Rank.RESTING)) / self._rig.device_blocks

    def _act(self, action: str, cache: Holder) -> None:
        match action:
            case "mirror" | "park":
                self._copy_out(cache)
            case "demote":
                cache.rank = Rank.DEMOTED
            case "promote":
                cache.rank = Rank.PROMOTED
            case "rest":
                cache.rank = Rank.RESTING
            case "evict":
                self._copy_out(cache)
                self._at(max(self._now_s, cache.copied_s), lambda: self._free(cache))
            case "prefetch":
                self._prefetch(cache)
            case _:
                self._unknown[action] = None

    def _copy_out(self, cache: Holder) -> None:
        copied = self._pool.copy_out(cache)
        if copied:
            self._blocks_out += copied
            cache.copied_s = self._out.run(self._now_s, copied * self._rig.copy_s)

    def _free(self, cache: Holder) -> None:
        """End of an eviction; one whose tool was faster keeps its blocks, and so do blocks the host had no room for."""
        if cache.blocked and cache.host >= cache.blocks and self._now_s >= cache.copied_s:
            self._pool.give(cache, cache.device, self._now_s)
            self._admit()

    def _prefetch(self, cache: Holder) -> None:
        missing = min(cache.host, cache.blocks) - cache.device
        fetched = min(missing, self._pool.room(cache, Rank.RESTING))
        if fetched > 0:
            usable_s = self._pool.take(cache, fetched, self._now_s, Rank.RESTING)
            assert usable_s is not None
            self._blocks_in += fetched
            cache.arrives_s = self._in.run(max(usable_s, cache.copied_s), fetched * self._rig.copy_s)
