"""What each agent is doing, as its requests and its tools' signals tell. Torch-free; nothing here is ever an error.

An agent is blocked while its set of open tool calls is not empty. A call opens when its start arrives, or when the
engine itself saw a turn end in it; it closes when its end arrives, when a request of its agent arrives, or when
nobody has heard of its end for ``ttl_ns``. Signals may come late, twice, in the wrong order or for nobody.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted

from .meters import RateMeter
from .policy import Moment
from .records import AgentState

_REMEMBERED: Final = 4096
"""How many ended calls and handed-out call ids are remembered for signals that come late."""

_ANNOUNCED: Final = "call id"
"""Stands in for the trace id of a call that the engine knows only from a turn's end."""

CallKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Transition:
    """An agent began or stopped to be blocked."""

    agent: str
    moment: Moment
    tool: str | None


@dataclass(slots=True)
class OpenCall:
    """A tool call that has not ended; ``heard_ns`` is when its start arrived."""

    tool: str | None
    heard_ns: int


@dataclass(slots=True)
class Session:
    """One agent. ``activity`` is what its requests do (``None``: it has none), ``turn_over`` that it answered."""

    agent: str
    born_ns: int
    state: AgentState = AgentState.IDLE
    since_ns: int = 0
    spent_ns: dict[AgentState, int] = field(default_factory=dict)
    open: dict[CallKey, OpenCall] = field(default_factory=dict)
    tool: str | None = None
    activity: AgentState | None = None
    turn_over: bool = False
    request_ns: int = 0
    parks: int = 0
    restores: int = 0
    parked: bool = False
    rate: RateMeter = field(default_factory=RateMeter)

    @property
    def blocked(self) -> bool:
        """Whether it waits for a tool."""
        return bool(self.open)

    def refresh(self, now_ns: int) -> None:
        """Account for the time since the last change and take the state that holds from now on."""
        if self.activity is not None:
            state = self.activity
        elif self.open:
            state = AgentState.BLOCKED_RESIDENT
        else:
            state = AgentState.HUMAN if self.turn_over else AgentState.IDLE
        if state is not self.state:
            self.spent_ns[self.state] = self.spent(self.state, now_ns)
            self.state, self.since_ns = state, now_ns

    def spent(self, state: AgentState, now_ns: int) -> int:
        """Nanoseconds in ``state`` until now; all forms of waiting for a tool count as ``BLOCKED_RESIDENT``."""
        running = now_ns - self.since_ns if state is self.state else 0
        return self.spent_ns.get(state, 0) + running

    def b(self, now_ns: int) -> float | None:
        """Share of its life spent blocked on tools, a person's time taken out; ``None`` before it has lived."""
        alive = now_ns - self.born_ns - self.spent(AgentState.HUMAN, now_ns)
        return self.spent(AgentState.BLOCKED_RESIDENT, now_ns) / alive if alive > 0 else None


class Sessions:
    """All agents that ever sent a request, up to ``limit``; ``unmatched`` counts signals for nobody."""

    def __init__(self, ttl_ns: int, limit: int = 4096) -> None:
        self.agents: OrderedDict[str, Session] = OrderedDict()
        self.unmatched = 0
        self._ttl_ns = ttl_ns
        self._limit = limit
        self._ended: OrderedDict[CallKey, None] = OrderedDict()
        self._call_agents: OrderedDict[str, str] = OrderedDict()
        self._heard: deque[tuple[int, str, CallKey]] = deque()

    def request(self, agent: str, now_ns: int) -> Transition | None:
        """A request of ``agent`` arrived: whatever it waited for is over."""
        session = self.agents.get(agent)
        if session is None:
            session = self.agents[agent] = Session(agent, now_ns, since_ns=now_ns)
        self.agents.move_to_end(agent)
        session.request_ns = now_ns
        session.turn_over = False
        returned = session.blocked
        session.open.clear()
        session.refresh(now_ns)
        return Transition(agent, Moment.RETURNED, session.tool) if returned else None

    def turn_ended(self, agent: str, calls: Mapping[str, str | None], now_ns: int) -> Transition | None:
        """A turn of ``agent`` ended in these tool calls (id to tool), or, where there are none, in an answer."""
        session = self.agents.get(agent)
        if session is None:
            return None
        self.remember_call_ids(agent, calls)
        session.turn_over = not calls and not session.open
        started = None
        for call, tool in calls.items():
            started = self._open(session, (_ANNOUNCED, call), tool, now_ns) or started
        session.refresh(now_ns)
        return started

    def remember_call_ids(self, agent: str, call_ids: Iterable[str]) -> None:
        """Note that ``agent`` was handed these tool call ids."""
        for call in call_ids:
            self._call_agents[call] = agent
        _trim(self._call_agents)

    def apply(self, signal: Signal, now_ns: int) -> Transition | None:
        """Take a signal; a transition if its agent began or stopped to be blocked by it."""
        session = self._find(signal)
        if session is None:
            self.unmatched += 1
            return None
        match signal:
            case ToolStarted():
                change = self._start(session, signal, now_ns)
            case ToolEnded():
                change = self._end(session, signal)
        session.refresh(now_ns)
        return change

    def expire(self, now_ns: int) -> list[Transition]:
        """Close the calls whose end is overdue; the agents that are not blocked any more."""
        expired = []
        while self._heard and now_ns - self._heard[0][0] > self._ttl_ns:
            heard_ns, agent, key = self._heard.popleft()
            session = self.agents.get(agent)
            call = session.open.get(key) if session is not None else None
            if session is None or call is None or call.heard_ns != heard_ns:
                continue
            self._close(session, key)
            session.refresh(now_ns)
            if not session.open:
                expired.append(Transition(agent, Moment.EXPIRED, session.tool))
        return expired

    def forget_idle(self) -> list[str]:
        """Drop agents beyond the limit, oldest request first; those with a request or an open call stay."""
        surplus = len(self.agents) - self._limit
        if surplus <= 0:
            return []
        idle = [s.agent for s in self.agents.values() if s.activity is None and not s.open][:surplus]
        for agent in idle:
            del self.agents[agent]
        return idle

    def _find(self, signal: Signal) -> Session | None:
        for agent in (signal.agent, signal.conversation, self._call_agents.get(signal.call_id or "")):
            if agent is not None and agent in self.agents:
                return self.agents[agent]
        return None

    def _start(self, session: Session, signal: ToolStarted, now_ns: int) -> Transition | None:
        key = (signal.trace_id, signal.span_id)
        if signal.time_unix_ns < session.request_ns or key in self._ended or key in session.open:
            return None
        # Opened before the announcement goes, so that an agent which was announced as blocked stays blocked throughout.
        started = self._open(session, key, signal.tool, now_ns)
        self._unannounce(session, signal.call_id)
        return started

    def _end(self, session: Session, signal: ToolEnded) -> Transition | None:
        was_blocked = session.blocked
        if signal.time_unix_ns >= session.request_ns:
            self._unannounce(session, signal.call_id)
        self._close(session, (signal.trace_id, signal.span_id))
        ended = was_blocked and not session.blocked
        return Transition(session.agent, Moment.RETURNED, signal.tool) if ended else None

    def _open(self, session: Session, key: CallKey, tool: str | None, now_ns: int) -> Transition | None:
        was_blocked = session.blocked
        session.open[key] = OpenCall(tool, now_ns)
        self._heard.append((now_ns, session.agent, key))
        session.tool = tool
        session.turn_over = False
        return None if was_blocked else Transition(session.agent, Moment.TOOL_STARTED, tool)

    def _close(self, session: Session, key: CallKey) -> None:
        session.open.pop(key, None)
        self._ended[key] = None
        _trim(self._ended)

    def _unannounce(self, session: Session, call_id: str | None) -> None:
        """A call's own signal takes over from its announcement; one without a call id stands for all announced."""
        announced = [key for key in session.open if key[0] == _ANNOUNCED and call_id in (None, key[1])]
        for key in announced:
            del session.open[key]


def _trim(memory: OrderedDict[CallKey, None] | OrderedDict[str, str]) -> None:
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
