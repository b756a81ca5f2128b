"""What each agent is doing, as its requests and its tools' signals tell. Torch-free; nothing here is ever an error.

An agent is blocked while its set of open tool calls is not empty. A call opens when its start arrives, or when the
engine itself saw a turn end in it; it closes when its end arrives, when a request of its agent arrives, or when
nobody has heard of its end for ``ttl_ns``. Signals may come late, twice, in the wrong order, for nobody, or without end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted

from .forecast import Forecasts
from .meters import RateMeter
from .policy import Moment
from .records import AgentState

_REMEMBERED: Final = 4096
"""How many ended calls and handed-out call ids are remembered for signals that come late."""

MOST_OPEN: Final = 65536
"""Most calls of all agents that are open at once; one more closes the one that was heard of first."""

_ANNOUNCED: Final = "call id of "
"""Stands, with the agent, in for the trace id of a call that the engine knows only from a turn's end."""

CYCLES: Final = 5
"""How many of an agent's last cycles, from a request to the next, its idleness looks back on."""

CallKey = tuple[str, str]

Span = tuple[str, str]
"""Trace id and span id."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that has not ended: its tool, when it began, and its span where one told of it."""

    tool: str | None
    since_ns: int
    span: Span | None


@dataclass(frozen=True, slots=True)
class Transition:
    """An agent began or stopped to wait: for a tool or, with :attr:`Moment.ANSWERED`, for a person.

    ``by_request``: no signal said so, its request came.
    """

    agent: str
    moment: Moment
    tool: str | None
    by_request: bool = False


@dataclass(slots=True)
class Session:
    """One agent. ``activity`` is what its requests do (``None``: it has none), ``turn_over`` that it answered.

    ``open`` has the calls that have not ended, ``announced`` those of them that only a turn's end told of; ``tool``
    and ``span`` are of the newest open one or else the last that was.
    ``calls`` counts its waits for tools, ``answers`` its turns that ended without one since the last. ``gone``: nobody
    expects it any more, until it is heard of again; ``expected``: while it is silent, it is taken for one that comes back.
    """

    agent: str
    born_ns: int
    state: AgentState = AgentState.IDLE
    since_ns: int = 0
    spent_ns: dict[AgentState, int] = field(default_factory=dict)
    open: dict[CallKey, OpenCall] = field(default_factory=dict)
    announced: dict[CallKey, None] = field(default_factory=dict)
    tool: str | None = None
    span: Span | None = None
    activity: AgentState | None = None
    turn_over: bool = False
    request_ns: int = 0
    parks: int = 0
    restores: int = 0
    parked: bool = False
    calls: int = 0
    answers: int = 0
    gone: bool = False
    expected: bool = False
    cycles: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=CYCLES))
    cycle: tuple[int, int] = (0, 0)
    rate: RateMeter = field(default_factory=RateMeter)

    @property
    def blocked(self) -> bool:
        """Whether it waits for a tool."""
        return bool(self.open)

    @property
    def silent(self) -> bool:
        """Whether nothing of it runs, and nobody has ever told what it does then."""
        return self.activity is None and self.state is AgentState.IDLE and not self.calls

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

    def turn_cycle(self, now_ns: int) -> None:
        """A request came: one cycle is over, and the next one begins."""
        began, idle = self.cycle
        if began:
            self.cycles.append((now_ns - began, self._idle(now_ns) - idle))
        self.cycle = (now_ns, self._idle(now_ns))

    def idleness(self, now_ns: int) -> float | None:
        """Share of its last cycles in which it waited for a tool or a person, the one under way counted up to now."""
        began, idle = self.cycle
        length, waited = now_ns - began, self._idle(now_ns) - idle
        for past_length, past_waited in self.cycles:
            length += past_length
            waited += past_waited
        return waited / length if length > 0 else None

    def _idle(self, now_ns: int) -> int:
        return self.spent(AgentState.BLOCKED_RESIDENT, now_ns) + self.spent(AgentState.HUMAN, now_ns)

    def seconds(self, now_ns: int) -> dict[str, float]:
        """Its life so far by state."""
        states = dict.fromkeys([*self.spent_ns, self.state])
        return {str(state): self.spent(state, now_ns) / 1e9 for state in states}

    def b(self, now_ns: int) -> float | None:
        """Share of its life spent blocked on tools, a person's time taken out; ``None`` before it has lived.

        Its life ends for now where it fell idle: nobody knows whether it ever comes back.
        """
        end_ns = self.since_ns if self.state is AgentState.IDLE else now_ns
        alive = end_ns - self.born_ns - self.spent(AgentState.HUMAN, end_ns)
        return self.spent(AgentState.BLOCKED_RESIDENT, now_ns) / alive if alive > 0 else None


class Sessions:
    """All agents that ever sent a request, up to ``limit``; ``matched`` counts their signals, ``unmatched`` those for nobody."""

    def __init__(self, ttl_ns: int, limit: int = 4096, forecasts: Forecasts | None = None) -> None:
        self.forecasts = forecasts or Forecasts()
        self.agents: OrderedDict[str, Session] = OrderedDict()
        self.matched = self.unmatched = 0
        self._ttl_ns = ttl_ns
        self._limit = limit
        self._ended: OrderedDict[CallKey, int] = OrderedDict()
        self._call_agents: OrderedDict[str, str] = OrderedDict()
        self._heard: OrderedDict[tuple[str, CallKey], int] = OrderedDict()
        self._heard_of: set[str] = set()

    def request(self, agent: str, now_ns: int) -> Transition | None:
        """A request of ``agent`` arrived: whatever it waited for is over."""
        session = self.agents.get(agent)
        if session is None:
            session = self.agents[agent] = Session(agent, now_ns, since_ns=now_ns)
        self.agents.move_to_end(agent)
        self._heard_of.add(agent)
        if session.silent and session.request_ns:
            self.forecasts.silence_ended((now_ns - session.since_ns) / 1e9)
        session.request_ns = now_ns
        if session.state is AgentState.HUMAN:
            self.forecasts.pause_ended((now_ns - session.since_ns) / 1e9)
        session.turn_over = session.gone = False
        returned = session.blocked
        for key in tuple(session.open):
            self._learn(session, key, now_ns)
            self._forget(session, key)
        if returned:
            self._wait_over(session, now_ns)
        session.turn_cycle(now_ns)
        session.refresh(now_ns)
        return Transition(agent, Moment.RETURNED, session.tool, by_request=True) if returned else None

    def turn_ended(self, agent: str, calls: Mapping[str, str | None], now_ns: int) -> Transition | None:
        """A turn of ``agent`` ended in these tool calls (id to tool), or, where there are none, in an answer."""
        session = self.agents.get(agent)
        if session is None:
            return None
        self._heard_of.add(agent)
        self.remember_call_ids(agent, calls)
        answered = not calls and not session.open
        session.answers += answered and not session.turn_over
        session.turn_over = answered
        started = None
        for call, tool in calls.items():
            key = _announced(agent, call)
            # Its own signals may have been faster.
            if self._ended.get(key, -1) < session.request_ns:
                started = self._open(session, key, OpenCall(tool, now_ns, None), now_ns) or started
                session.announced[key] = None
        session.refresh(now_ns)
        return Transition(agent, Moment.ANSWERED, None) if answered else started

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
        self.matched += 1
        self._heard_of.add(session.agent)
        match signal:
            case ToolStarted():
                change = self._start(session, signal, now_ns)
            case ToolEnded():
                change = self._end(session, signal, now_ns)
        session.refresh(now_ns)
        return change

    def expire(self, now_ns: int) -> list[Transition]:
        """Close the calls whose end is overdue; the agents that are not blocked any more."""
        expired = []
        while self._heard:
            (agent, key), heard_ns = next(iter(self._heard.items()))
            if now_ns - heard_ns <= self._ttl_ns and len(self._heard) <= MOST_OPEN:
                break
            session = self.agents[agent]
            self._heard_of.add(agent)
            self._close(session, key, now_ns)
            session.refresh(now_ns)
            if not session.open:
                expired.append(Transition(agent, Moment.EXPIRED, session.tool))
        return expired

    def waiting_agents(self) -> set[str]:
        """The agents with an open call."""
        return {agent for agent, _ in self._heard}

    def blocked_agents(self) -> set[str]:
        """The agents that wait for a tool, and are expected back."""
        return {agent for agent, _ in self._heard if not self.agents[agent].gone}

    def forget_idle(self) -> list[str]:
        """Drop agents beyond the limit, oldest request first; those with a request or an open call stay."""
        surplus = len(self.agents) - self._limit
        if surplus <= 0:
            return []
        idle = [*islice((s.agent for s in self.agents.values() if s.activity is None and not s.open), surplus)]
        for agent in idle:
            del self.agents[agent]
            self._heard_of.discard(agent)
        return idle

    def take_heard_of(self) -> set[str]:
        """The agents of whom anything has come since the last call."""
        taken, self._heard_of = self._heard_of, set()
        return taken

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
        started = self._open(session, key, OpenCall(signal.tool, signal.time_unix_ns, key), now_ns)
        self._unannounce(session, signal.call_id)
        return started

    def _end(self, session: Session, signal: ToolEnded, now_ns: int) -> Transition | None:
        was_blocked = session.blocked
        self._learn(session, (signal.trace_id, signal.span_id), signal.time_unix_ns)
        if signal.time_unix_ns >= session.request_ns:
            self._unannounce(session, signal.call_id)
            if signal.call_id is not None:
                self._close(session, _announced(session.agent, signal.call_id), signal.time_unix_ns)
        self._close(session, (signal.trace_id, signal.span_id), signal.time_unix_ns)
        ended = was_blocked and not session.blocked
        if ended:
            session.gone = False
            self._wait_over(session, now_ns)
        return Transition(session.agent, Moment.RETURNED, signal.tool) if ended else None

    def _open(self, session: Session, key: CallKey, call: OpenCall, now_ns: int) -> Transition | None:
        was_blocked = session.blocked
        session.open[key] = call
        self._heard[session.agent, key] = now_ns
        self._heard.move_to_end((session.agent, key))
        session.tool, session.span = call.tool, call.span
        session.turn_over = session.gone = False
        if was_blocked:
            return None
        session.calls += 1
        session.answers = 0
        return Transition(session.agent, Moment.TOOL_STARTED, call.tool)

    def _learn(self, session: Session, key: CallKey, ended_ns: int) -> None:
        call = session.open.get(key)
        if call is not None:
            self.forecasts.call_ended(call.tool, (ended_ns - call.since_ns) / 1e9)

    def _wait_over(self, session: Session, now_ns: int) -> None:
        # A tool that ran while the agent generated held nobody up.
        if session.state is AgentState.BLOCKED_RESIDENT:
            self.forecasts.wait_ended((now_ns - session.since_ns) / 1e9)

    def _close(self, session: Session, key: CallKey, ended_ns: int) -> None:
        self._forget(session, key)
        self._ended[key] = ended_ns
        _trim(self._ended)

    def _forget(self, session: Session, key: CallKey) -> None:
        session.open.pop(key, None)
        session.announced.pop(key, None)
        self._heard.pop((session.agent, key), None)
        if session.open:
            newest = next(reversed(session.open.values()))
            session.tool, session.span = newest.tool, newest.span

    def _unannounce(self, session: Session, call_id: str | None) -> None:
        """A call's own signal takes over from its announcement; one without a call id stands for all announced."""
        # Looked up, not searched for: an agent may have tens of thousands of calls open, and one that never ends them does.
        keys = tuple(session.announced) if call_id is None else (_announced(session.agent, call_id),)
        for key in keys:
            if key in session.announced:
                self._forget(session, key)


def _announced(agent: str, call_id: str) -> CallKey:
    return (_ANNOUNCED + agent, call_id)


def _trim(memory: OrderedDict[CallKey, int] | OrderedDict[str, str]) -> None:
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
