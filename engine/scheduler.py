"""Who runs next: preemption, admission and the share of each step. Pure: views in, plans out. Torch-free.

A step is planned twice: :func:`plan_memory` before blocks are handed out, :func:`plan_shares` when it is known who
got them. Together they never stall: the oldest request that holds blocks always gets the next one (everybody younger
makes room for it) and has a part in every step, nobody is overtaken by requests that come much later, and
nobody is admitted behind one that does not fit yet. docs/policy.md has the measurements behind each rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

MOST_TURNS: Final = 5
"""So many turns that an agent had count in the order of admission, so that nobody is overtaken for ever."""

OLDEST_SHARE: Final = 4
"""The oldest prefill has this part of a step's positions for prefills, however short the others are."""


@dataclass(frozen=True, slots=True)
class Running:
    """A request that holds a slot and blocks.

    ``grows``: its next position lies outside its table. ``yields``: blocks that preempting it makes available; it is
    looked at only where fewer blocks are left than requests grow.
    """

    id: int
    grows: bool
    yields: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without a slot. ``demand``: available blocks it would use up."""

    id: int
    demand: int


@dataclass(frozen=True, slots=True)
class MemoryView:
    """All that holds or wants blocks.

    ``waiting`` is in the order of :func:`waiting_order`. ``available`` blocks can be handed out now or when the
    copies that empty them are done; ``coming`` ones will be when other copies are done.
    """

    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    available: int
    coming: int
    slots: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Ids: who gives back its blocks, who gets one more, who gets a slot and blocks; each in order."""

    preempt: tuple[int, ...] = ()
    grow: tuple[int, ...] = ()
    admit: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """How many positions of a request this step computes."""

    id: int
    tokens: int


def waiting_order(waiting: Iterable[tuple[int, int, int]], turn_ns: int) -> list[int]:
    """Ids of ``(id, turns, arrived_ns)`` in the order of admission.

    First come, first served, but each turn that its agent had before counts as having come ``turn_ns`` later: who was
    served least is first, and agents that began together end together rather than one after the other.
    """

    def rank(request: tuple[int, int, int]) -> tuple[int, int]:
        number, turns, arrived_ns = request
        return (arrived_ns + min(turns, MOST_TURNS) * turn_ns, number)

    return [number for number, _, _ in sorted(waiting, key=rank)]


def paused_newcomers(
    newcomers: Iterable[tuple[int, str, int]], under_way: Mapping[str, int], most_agents: int | None, room: int | None
) -> Set[int]:
    """Ids of those of ``(id, agent, blocks)`` that wait until agents in the middle of their turns are through.

    ``under_way`` has these agents and the blocks of their contexts; there may be ``most_agents`` of them, whose contexts
    fit into ``room`` blocks (``None``: no limit). Where nobody is under way the first one never waits.
    """
    agents, blocks = set(under_way), sum(under_way.values())
    paused = set()
    for number, agent, needed in newcomers:
        too_many = most_agents is not None and len(agents | {agent}) > most_agents
        if agents and (too_many or (room is not None and blocks + needed > room)):
            paused.add(number)
        else:
            agents.add(agent)
            blocks += needed
    return paused


def plan_memory(view: MemoryView) -> MemoryPlan:
    """Give each growing request its block, oldest first, taking them from the youngest; then admit who fits."""
    holders = sorted(view.running, key=lambda running: running.id)
    left = view.available + view.coming
    grow: list[int] = []
    preempt: list[int] = []
    for candidate in [running for running in holders if running.grows]:
        while left < 1 and candidate in holders:
            youngest = holders.pop()
            preempt.append(youngest.id)
            left += youngest.yields
        if candidate in holders:
            left -= 1
            grow.append(candidate.id)
    # Who was preempted needs the space first: admitting others at once would only trade places.
    admit = () if preempt else _admissions(view, len(holders), left)
    return MemoryPlan(tuple(preempt), tuple(grow), admit)


def _admissions(view: MemoryView, holders: int, left: int) -> tuple[int, ...]:
    """Who fits, in order. Each request that already runs keeps one block in reserve to grow into."""
    admit: list[int] = []
    for candidate in view.waiting:
        reserve = holders + len(admit)
        if reserve >= view.slots or candidate.demand + reserve > left:
            break
        left -= candidate.demand
        admit.append(candidate.id)
    return tuple(admit)


def step_limit(decoding: int, slots: int, step_tokens: int, mixed_tokens: int | None) -> int:
    """Most positions of a step in which ``decoding`` of ``slots`` requests decode.

    Those who decode have one position of each step, so the longer a step is, the fewer tokens come of the time that
    they hold their slots. Where seven of eight slots decode a step has ``mixed_tokens``, where half of them do twice as
    many, never more than ``step_tokens``; with fewer, prompts matter more: soon they decode as well. ``None``:
    ``step_tokens`` whoever decodes. Never below ``slots`` if neither is.
    """
    if mixed_tokens is None or 2 * decoding < slots:
        return step_tokens
    return min(step_tokens, mixed_tokens if 8 * decoding >= 7 * slots else 2 * mixed_tokens)


def plan_shares(pending: Iterable[tuple[int, int]], step_tokens: int) -> tuple[Share, ...]:
    """Split ``step_tokens`` over ``(id, positions to compute)``: one for each that decodes, the rest to prefills.

    Of what is left for prefills the oldest has a quarter, so that a long prompt goes on whatever comes; the rest goes
    to the shortest first: an agent that returns with a hundred tokens does not wait behind thousands of somebody
    else's. ``step_tokens`` is at least the number of requests.
    """
    in_order = sorted(pending)
    shares = [Share(number, 1) for number, tokens in in_order if tokens == 1]
    prefills = [(number, tokens) for number, tokens in in_order if tokens > 1]
    left = step_tokens - len(shares)
    if not prefills or left < 1:
        return tuple(shares)
    given = {prefills[0][0]: min(prefills[0][1], max(1, left // OLDEST_SHARE))}
    left -= sum(given.values())
    for number, tokens in sorted(prefills, key=lambda prefill: (prefill[1], prefill[0])):
        more = min(tokens - given.get(number, 0), left)
        if more:
            given[number] = given.get(number, 0) + more
            left -= more
    return (*shares, *(Share(number, given[number]) for number, _ in prefills if number in given))
