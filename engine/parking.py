"""Carries out the policy's actions on the cache and tells what came of them. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable

from .blocks import Piece
from .config import PolicyMode
from .events import EventLog, Operation
from .policy import Action, AgentView, Demote, Evict, Mirror, Moment, Park, Prefetch, Promote, Rest, decide
from .records import EngineEvent, EventKind
from .sessions import Session, Sessions, Transition
from .swap.contract import Copy, CopyDone, Direction
from .tiers import Hits, TieredCache


class Parking:
    """Between the sessions, which know who is blocked, and the cache, which has the blocks."""

    def __init__(
        self, mode: PolicyMode, cache: TieredCache, sessions: Sessions, events: EventLog, block_bytes: int
    ) -> None:
        self._mode = mode
        self._cache = cache
        self._sessions = sessions
        self._events = events
        self._block_bytes = block_bytes

    def changed(self, transition: Transition, now_ns: int) -> None:
        """An agent began or stopped to be blocked, or released blocks while it is."""
        for action in decide(self._mode, transition.moment, self._view(transition.agent, transition.tool)):
            self._act(action, transition.tool, now_ns)

    def filled(self, agent: str, pieces: list[Piece]) -> None:
        """A request of ``agent`` filled blocks."""
        for action in decide(self._mode, Moment.FILLED, self._view(agent, None)) if pieces else ():
            if isinstance(action, Mirror):
                self._cache.mirror(pieces)

    def admitted(self, agent: str, hits: Hits, copies: Iterable[Copy], now_ns: int) -> None:
        """A request of ``agent`` got its blocks, for which these copies were started."""
        session = self._sessions.agents[agent]
        incoming = [copy.id for copy in copies if copy.direction is Direction.IN]
        if incoming:
            self._restore(session, session.tool, incoming, "its request came", now_ns)
        elif session.parked and hits.device_tokens:
            size = self._cache.residency(agent).device_blocks * self._block_bytes
            why = "nobody had needed the space"
            self._events.note(EngineEvent(now_ns, agent, EventKind.REVIVE, session.tool, size, None, why))
        session.parked = False

    def preempted(self, agent: str, blocks: int, now_ns: int) -> None:
        """A running request of ``agent`` gave back ``blocks`` blocks."""
        why = "older requests outgrew the pool"
        self._events.note(EngineEvent(now_ns, agent, EventKind.PREEMPT, None, blocks * self._block_bytes, None, why))

    def refused(self, agent: str, size_bytes: int, why: str, now_ns: int) -> None:
        """A request that can never run was refused."""
        self._events.note(EngineEvent(now_ns, agent, EventKind.REFUSE, None, size_bytes, None, why))

    def copied(self, done: list[CopyDone], now_ns: int) -> None:
        """Copies ended."""
        self._count(self._events.copied(done, now_ns))

    def report_losses(self, now_ns: int) -> None:
        """Turn the blocks that were reclaimed or dropped since the last call into one event an agent and kind."""
        losses, self._cache.placement.losses = self._cache.placement.losses, type(self._cache.placement.losses)()
        for (kind, agent), blocks in losses.items():
            session = self._sessions.agents.get(agent)
            tool = session.tool if session is not None and session.blocked else None
            why = "others needed the space; the host has it" if kind is EventKind.RECLAIM else self._why_dropped()
            self._events.note(EngineEvent(now_ns, agent, kind, tool, blocks * self._block_bytes, None, why))

    def _why_dropped(self) -> str:
        if not self._mode.uses_host:
            return f"policy {self._mode} keeps no copy; it is computed again when needed"
        return "the host tier had no room; it is computed again when needed"

    def _view(self, agent: str, tool: str | None) -> AgentView:
        residency = self._cache.residency(agent)
        return AgentView(agent, tool, residency.blocks, residency.device_blocks, residency.host_blocks)

    def _act(self, action: Action, tool: str | None, now_ns: int) -> None:
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
            case Prefetch():
                copies = self._cache.prefetch(action.agent)
                if copies:
                    self._restore(self._sessions.agents[action.agent], tool, copies, action.why, now_ns)
            case _:
                raise AssertionError(f"{action} is not for this moment")

    def _park(self, action: Action, tool: str | None, copies: list[int], now_ns: int) -> None:
        blocks = self._cache.residency(action.agent).host_blocks
        if blocks:
            self._sessions.agents[action.agent].parked = True
            size = blocks * self._block_bytes
            self._begin(Operation(EventKind.PARK, action.agent, tool, size, action.why, set(copies)), now_ns)

    def _restore(self, session: Session, tool: str | None, copies: list[int], why: str, now_ns: int) -> None:
        session.parked = False
        size = len(copies) * self._block_bytes
        self._begin(Operation(EventKind.RESTORE, session.agent, tool, size, why, set(copies)), now_ns)

    def _begin(self, operation: Operation, now_ns: int) -> None:
        self._count(self._events.begin(operation, now_ns))

    def _count(self, events: list[EngineEvent]) -> None:
        for event in events:
            session = self._sessions.agents.get(event.agent)
            if session is not None and event.kind is EventKind.PARK:
                session.parks += 1
            elif session is not None and event.kind is EventKind.RESTORE:
                session.restores += 1
