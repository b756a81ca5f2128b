"""Carries out the policy's actions on the cache and tells what came of them. Torch-free."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from functools import partial
from itertools import chain
from typing import Final

from .blocks import Piece
from .config import PolicyMode
from .events import EventLog, Operation
from .findings import Hits
from .outlook import Outlooks, believed, waits
from .policy import (
    BELIEVED_S,
    FINISHED_S,
    RETURNED_S,
    Action,
    AgentView,
    Candidate,
    Demote,
    Evict,
    Hold,
    Mirror,
    Moment,
    Outlook,
    Park,
    Prefetch,
    Promote,
    Rest,
    believed_s,
    decide,
)
from .records import EngineEvent, EventKind
from .sessions import Session, Sessions, Transition
from .swap.contract import CopyDone
from .tiers import TieredCache

_OFFERED_NS: Final = 20_000_000
"""How often waiting agents are asked to give way to requests that lack space."""

_RANKED_NS: Final = 50_000_000
"""How long an order of victims is good for, and longer in proportion where there are more than ``_RANKED``."""

_RANKED: Final = 32

_ABORTED: Final = "abort"

_AHEAD_TOKENS: Final = 1024
"""Least number of tokens that are worth a restore ahead of its slot, unless fewer are missing."""


class Parking:
    """Between the sessions, which know who is blocked, and the cache, which has the blocks.

    ``crowded``: requests wait though all slots are taken, or space is short.
    """

    def __init__(
        self,
        mode: PolicyMode,
        cache: TieredCache,
        sessions: Sessions,
        events: EventLog,
        block_bytes: int,
        outlooks: Outlooks,
    ) -> None:
        self._mode = mode
        self._cache = cache
        self._sessions = sessions
        self._events = events
        self._block_bytes = block_bytes
        self._outlooks = outlooks
        self._holds: list[tuple[int, str, int]] = []
        self._watched: list[tuple[int, str, int]] = []
        self._left: dict[str, None] = {}
        self._ranking: list[Candidate] = []
        self._ranked_ns = self._offered_ns = -_RANKED_NS
        self._futile: tuple[str, int, int, int] | None = None
        self._now_ns = 0
        self.crowded = False
        if mode is PolicyMode.AUTO:
            cache.placement.eviction.coldest = self._coldest

    def changed(self, transition: Transition, now_ns: int) -> None:
        """An agent began or stopped to be blocked, or released blocks while it is."""
        self._now_ns = now_ns
        agent, moment = transition.agent, transition.moment
        if moment is Moment.TOOL_STARTED:
            self._watch(agent, BELIEVED_S, now_ns)
        elif moment is Moment.RETURNED and not transition.by_request:
            self._watch(agent, RETURNED_S, now_ns)
        for action in decide(self._mode, moment, self._view(agent, transition.tool, now_ns)):
            self._act(action, transition.tool, now_ns, urgent=transition.by_request)
        if moment in (Moment.EXPIRED, Moment.GONE):
            self._sessions.agents[agent].gone = True
            self._leave(agent)

    def ended(self, agent: str, reason: str, now_ns: int) -> None:
        """The last request of ``agent`` ended for ``reason``, and no tool of it is known to run."""
        if self._mode is PolicyMode.KEEP:
            return
        session = self._sessions.agents[agent]
        if reason == _ABORTED:
            self.changed(Transition(agent, Moment.GONE, None), now_ns)
        elif self._mode is PolicyMode.AUTO and session.silent:
            self._look_after_silent(session, now_ns)
        else:
            self._watch(agent, FINISHED_S, now_ns)
            if self._mode is PolicyMode.RECOMPUTE:
                self._leave(agent)  # who is about to wait is no dearer than who does already

    def _leave(self, agent: str) -> None:
        if self._mode is PolicyMode.AUTO:
            return  # which ranks them with all the others
        self._left.pop(agent, None)
        self._left[agent] = None
        known = self._sessions.agents
        if len(self._left) > 2 * len(known):
            self._left = {one: None for one in self._left if one in known}

    def filled(self, agent: str, pieces: list[Piece], now_ns: int) -> None:
        """A request of ``agent`` filled blocks."""
        self._now_ns = now_ns
        if not pieces:
            return
        # Where its context lies does not matter here, and looking would cost every step.
        view = AgentView(agent, None, 0, 0, 0, Outlook(answers=self._sessions.agents[agent].answers))
        for action in decide(self._mode, Moment.FILLED, view):
            if isinstance(action, Mirror):
                self._cache.mirror(pieces)

    def overdue(self, now_ns: int) -> None:
        """Ask again about the agents that still wait though a :class:`.policy.Hold` is over."""
        while self._holds and self._holds[0][0] <= now_ns:
            _, agent, since_ns = heapq.heappop(self._holds)
            session = self._sessions.agents.get(agent)
            if session is not None and waits(session) and session.since_ns == since_ns and not session.parked:
                self.changed(Transition(agent, Moment.OVERDUE, session.tool if session.blocked else None), now_ns)

        while self._watched and self._watched[0][0] <= now_ns:
            _, agent, since_ns = heapq.heappop(self._watched)
            session = self._sessions.agents.get(agent)
            if session is not None and session.activity is None and session.since_ns == since_ns and not session.gone:
                self._look_after(session, now_ns)

    def _watch(self, agent: str, seconds: float, now_ns: int) -> None:
        """Look after ``agent`` again if nothing has been heard of it for ``seconds``."""
        since_ns = self._sessions.agents[agent].since_ns
        heapq.heappush(self._watched, (now_ns + int(seconds * 1e9), agent, since_ns))

    def _look_after(self, session: Session, now_ns: int) -> None:
        if session.blocked and believed(session, self._sessions.forecasts, now_ns):
            self._watch(session.agent, BELIEVED_S / 4, now_ns)
        elif session.silent and self._mode is PolicyMode.AUTO:
            self._look_after_silent(session, now_ns)
        elif session.calls:  # whose tools nobody tells of is silent in each of them
            self.changed(Transition(session.agent, Moment.GONE, session.tool if session.blocked else None), now_ns)

    def _look_after_silent(self, session: Session, now_ns: int) -> None:
        """Of whose tools nobody tells is expected for as long as others like it were away that came back."""
        longest_s, silent_s = self._sessions.forecasts.longest_silence_s(), (now_ns - session.since_ns) / 1e9
        if longest_s is None:
            if silent_s < BELIEVED_S:
                self._watch(session.agent, BELIEVED_S / 4, now_ns)
        elif silent_s >= believed_s(longest_s):
            self.changed(Transition(session.agent, Moment.GONE, None), now_ns)
        else:
            if not session.expected:
                session.expected = True
                self.changed(Transition(session.agent, Moment.SILENT, None), now_ns)
            self._watch(session.agent, BELIEVED_S / 4, now_ns)

    def make_room(self, blocks: int, now_ns: int) -> None:
        """Requests want ``blocks`` blocks more than are free: put those of the best victims first in the queue."""
        self._now_ns = now_ns
        if blocks <= 0:
            return
        if self._mode is not PolicyMode.AUTO:
            self._offer_leftovers(blocks)
        elif now_ns - self._offered_ns >= _OFFERED_NS:
            self._offered_ns = now_ns
            self._offer(blocks, 0.0, now_ns)

    def _offer_leftovers(self, blocks: int) -> None:
        """Put ``blocks`` blocks of agents that no tool will bring back first in the queue: before those of any that wait."""
        chosen: list[str] = []
        for agent in tuple(self._left):
            session, there = self._sessions.agents.get(agent), self._cache.claims.device_blocks(agent)
            if session is None or session.activity is not None or (session.blocked and not session.gone) or not there:
                del self._left[agent]
            elif blocks > 0:
                blocks -= there
                chosen.append(agent)
        for agent in reversed(chosen):
            self._cache.offer(agent, must=False)

    def _offer(self, blocks: int, least_s: float, now_ns: int) -> None:
        """Put ``blocks`` blocks first in the queue, of agents expected to stay away for ``least_s`` or longer."""
        chosen: list[Candidate] = []
        for candidate in self._victims():
            session = self._sessions.agents.get(candidate.agent)
            if session is None or session.activity is not None or candidate.left_s < least_s:
                continue  # it came back since the order was made, or will be back too soon
            if blocks <= 0:
                break
            there = self._cache.claims.device_blocks(candidate.agent)
            if there:
                blocks -= there
                chosen.append(candidate)
        # Each of them goes to the very front, so the first to give way is the last one here.
        for candidate in reversed(chosen):
            self._give_way(candidate, now_ns)

    def _give_way(self, candidate: Candidate, now_ns: int) -> None:
        session = self._sessions.agents[candidate.agent]
        if not waits(session):
            self._cache.offer(candidate.agent, must=not session.gone)
            return
        if not session.parked:
            why = f"others need the space, and it is expected to wait {candidate.left_s:.1f} s more"
            self._act(Park(candidate.agent, why), session.tool if session.blocked else None, now_ns)
        self._cache.demote(candidate.agent)

    def admitted(self, agent: str, hits: Hits, now_ns: int) -> None:
        """A request of ``agent`` got its blocks."""
        session = self._sessions.agents[agent]
        if hits.copies:
            self._restore(session, session.tool, list(hits.copies), "its request came", now_ns)
        elif session.parked and hits.device_tokens:
            self._note(session, EventKind.REVIVE, session.tool, self._cache.residency(agent).device_blocks, now_ns)
        session.parked = False

    def restore_ahead(self, agent: str, room: int, now_ns: int) -> None:
        """Copy back what is missing of ``agent``, who is next to have a slot, into up to ``room`` blocks that are not in use.

        It takes blocks of those who come after it, but none of its own. Not a few at a time: each of these is a restore that
        people see.
        """
        self._now_ns = now_ns
        residency = self._cache.residency(agent)
        missing = residency.blocks - residency.device_blocks
        most = min(missing, room - residency.device_blocks)
        if not self._mode.uses_host or most < max(1, min(missing, _AHEAD_TOKENS // self._cache.block_tokens)):
            return
        # This is asked in every step: where there was no room, and nothing has changed since, there is none.
        if self._futile == self._state(agent):
            return
        self._make_room_for(agent, now_ns)
        copies = self._cache.prefetch(agent, most=most, needed=True)
        if copies:
            self._restore(self._sessions.agents[agent], None, copies, "its slot will be free soon", now_ns)
        else:
            self._futile = self._state(agent)

    def _state(self, agent: str) -> tuple[str, int, int, int]:
        return agent, self._cache.claims.version, self._cache.placement.device.dropped, self._ranked_ns

    def preempted(self, agent: str, blocks: int, now_ns: int) -> None:
        """A running request of ``agent`` gave back ``blocks`` blocks."""
        why = "older requests outgrew the pool"
        self._events.note(EngineEvent(now_ns, agent, EventKind.PREEMPT, None, blocks * self._block_bytes, None, why))

    def refused(self, agent: str, size_bytes: int, why: str, now_ns: int) -> None:
        """A request that can never run was refused."""
        self._events.note(EngineEvent(now_ns, agent, EventKind.REFUSE, None, size_bytes, None, why))

    def copied(self, ended: Mapping[int, CopyDone], now_ns: int) -> None:
        """Copies, by their ids, ended."""
        self._now_ns = now_ns
        self._count(self._events.copied(ended, now_ns))

    def report_losses(self, now_ns: int) -> None:
        """Turn the blocks that were reclaimed or dropped since the last call into one event an agent and kind."""
        losses, self._cache.placement.losses = self._cache.placement.losses, type(self._cache.placement.losses)()
        for (kind, agent), blocks in losses.items():
            session = self._sessions.agents.get(agent)
            blocked = session if session is not None and session.blocked else None
            tool, span = (blocked.tool, blocked.span) if blocked is not None else (None, None)
            why = "others needed the space; the host has it" if kind is EventKind.RECLAIM else self._why_dropped()
            size = blocks * self._block_bytes
            self._events.note(EngineEvent(now_ns, agent, kind, tool, size, None, why, *(span or (None, None))))

    def _why_dropped(self) -> str:
        if not self._mode.uses_host:
            return f"policy {self._mode} keeps no copy; it is computed again when needed"
        return "the host tier had no room; it is computed again when needed"

    def _view(self, agent: str, tool: str | None, now_ns: int) -> AgentView:
        residency = self._cache.residency(agent)
        outlook = self._outlooks.of(agent, residency, now_ns) if self._mode is PolicyMode.AUTO else Outlook()
        return AgentView(agent, tool, residency.blocks, residency.device_blocks, residency.host_blocks, outlook)

    def _act(self, action: Action, tool: str | None, now_ns: int, *, urgent: bool = False) -> None:
        match action:
            case Park():
                self._park(action, tool, self._cache.park(action.agent), now_ns)
            case Evict():
                self._cache.evict(action.agent)
                self._park(action, tool, self._cache.copies_out(action.agent), now_ns)
            case Demote():
                self._cache.demote(action.agent)
            case Promote():
                self._cache.promote(action.agent)
            case Rest():
                self._cache.rest(action.agent)
            case Hold():
                self._cache.hold(action.agent)
                since_ns = self._sessions.agents[action.agent].since_ns
                heapq.heappush(self._holds, (now_ns + int(action.seconds * 1e9), action.agent, since_ns))
            case Prefetch() if self.crowded:
                pass  # it waits for a slot behind others, and room is for those who are next: restore_ahead sees to it
            case Prefetch():
                room = partial(self._make_room_for, action.agent, now_ns)
                copies = self._cache.prefetch(action.agent, urgent=urgent, make_room=room)
                if copies:
                    self._restore(self._sessions.agents[action.agent], tool, copies, action.why, now_ns)
            case _:
                raise AssertionError(f"{action} is not for this moment")

    def _make_room_for(self, agent: str, now_ns: int) -> None:
        """Before a prefetch: those who will be away for longer than the way back takes give way to who is back now."""
        residency = self._cache.residency(agent)
        missing = residency.blocks - residency.device_blocks - len(self._cache.placement.device.free)
        if self._mode is PolicyMode.AUTO and missing > 0:
            self._offer(missing, 2 * self._outlooks.of(agent, residency, now_ns).round_trip_s, now_ns)

    def _park(self, action: Action, tool: str | None, copies: list[int], now_ns: int) -> None:
        blocks = self._cache.residency(action.agent).host_blocks
        if blocks:
            session = self._sessions.agents[action.agent]
            session.parked = True
            self._begin(session, EventKind.PARK, tool, blocks, action.why, copies, now_ns)

    def _restore(self, session: Session, tool: str | None, copies: list[int], why: str, now_ns: int) -> None:
        session.parked = False
        self._begin(session, EventKind.RESTORE, tool, len(copies), why, copies, now_ns)

    def _begin(
        self,
        session: Session,
        kind: EventKind,
        tool: str | None,
        blocks: int,
        why: str,
        copies: list[int],
        now_ns: int,
    ) -> None:
        size = blocks * self._block_bytes
        span = session.span if tool is not None else None
        self._count(self._events.begin(Operation(kind, session.agent, tool, size, why, set(copies), span), now_ns))

    def _note(self, session: Session, kind: EventKind, tool: str | None, blocks: int, now_ns: int) -> None:
        why, size = "nobody had needed the space", blocks * self._block_bytes
        span = session.span or (None, None)
        self._events.note(EngineEvent(now_ns, session.agent, kind, tool, size, None, why, *span))

    def _count(self, events: list[EngineEvent]) -> None:
        for event in events:
            session = self._sessions.agents.get(event.agent)
            if session is not None and event.kind is EventKind.PARK:
                session.parks += 1
            elif session is not None and event.kind is EventKind.RESTORE:
                session.restores += 1

    def _victims(self) -> list[Candidate]:
        if self._now_ns - self._ranked_ns >= _RANKED_NS * (1 + len(self._ranking) // _RANKED):
            self._ranking = self._outlooks.victims(self._now_ns)
            self._ranked_ns = self._now_ns
        return self._ranking

    def _coldest(self, wanted: Piece, spare: Set[int]) -> Piece | None:
        """A full host's piece that may go for ``wanted``: of whoever waits longest, the end of its context first."""
        for candidate in self._victims():
            if candidate.agent == wanted.agent:
                return None
            session = self._sessions.agents.get(candidate.agent)
            if session is not None and waits(session) and self._cache.residency(candidate.agent).host_blocks:
                piece = self._last_on_host(candidate.agent, spare)
                if piece is not None:
                    return piece
        return None

    def _last_on_host(self, agent: str, spare: Set[int]) -> Piece | None:
        """The last piece of ``agent``'s context whose host slot can be emptied and that only agents which wait hold."""
        claims, placement = self._cache.claims, self._cache.placement
        holding = claims.of(agent)
        if holding is None:
            return None
        for piece in chain((holding.tail,), map(placement.index.get, reversed(holding.keys))):
            if piece is None or piece.host is None or piece.host in spare or claims.hot(piece):
                continue
            if not placement.host.ready(piece.host):
                continue
            return piece
        return None
