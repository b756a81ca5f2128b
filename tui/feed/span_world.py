"""Agents as their spans tell of them at one instant: what each does, since when, and its b so far.

A simplified form of the timeline of ``kvtrace report``: time goes forward only, and each agent has sets of open calls. A
model call generates, unless a tool call runs inside it; a tool call blocks; a wait for a person, and the time between an
agent's runs, is a person's. Of a sub-agent's run its parent waits. What is known only at a span's end (queue reports,
nested copies of one call) is left to the report.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvtrace.engine.records import (
    AgentRecord,
    AgentState,
    HostTier,
    Link,
    Snapshot,
    Tiers,
    Totals,
    VramTier,
)
from kvtrace.tracer.attributes import UNKNOWN_AGENT

from .decode import printable

if TYPE_CHECKING:
    from kvtrace.analysis.normal import SpanRecord

SpanKey = tuple[str, str]

_NS: Final = 1_000_000_000
_NOTHING: Final = Snapshot(
    time_unix_ns=0,
    model="",
    device="",
    policy="",
    tiers=Tiers(VramTier(None, 0, 0, 0, 0, 0, None), HostTier(0, 0, 0, 0)),
    link=Link(0.0, 0.0, 0.0, 0.0, 0, 0),
    agents=(),
    events=(),
    totals=Totals(0, 0, 0, 0, 0, 0, 0, 0, 0.0),
)


@dataclass(slots=True)
class _Call:
    """A span that is open: what it is, the tool's name, and the agent it counts for."""

    kind: str
    name: str
    agent: str
    inside_model: bool


@dataclass(slots=True)
class _Agent:
    """One agent; ``open`` are its calls by span, in the order in which they began."""

    id: str
    name: str
    born_ns: int
    state: AgentState = AgentState.IDLE
    tool: str | None = None
    since_ns: int = 0
    counted_ns: int = 0
    blocked_ns: int = 0
    human_ns: int = 0
    idle_ns: int = 0
    open: dict[SpanKey, _Call] = field(default_factory=dict)
    ran: bool = False
    running: int = 0
    tokens: int = 0


class SpanWorld:
    """All agents of some span files. Records may be told in any order; time is only moved forward."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._known: dict[SpanKey, SpanRecord] = {}
        self._owners: dict[SpanKey, str] = {}
        self._changes: list[tuple[int, int, int, SpanKey]] = []
        self._count = 0
        self.last_ns = 0
        self.first_ns: int | None = None

    def tell(self, records: Iterable[SpanRecord]) -> None:
        """Take note of spans: starts, complete spans, or both of the same span, however often."""
        fresh = []
        for record in records:
            if record.start_ns is None:
                continue
            key = (record.trace_id, record.span_id)
            before = self._known.get(key)
            if before is not None and (before.end_ns is not None or record.end_ns is None):
                continue
            self._known[key] = record
            if before is None:
                fresh.append(record)
                self._plan(record.start_ns, 0, key)
            if record.end_ns is not None:
                self._plan(max(record.end_ns, record.start_ns), 1, key)
        for record in fresh:
            # After all of them are known: exporters write a parent after its children.
            self._owners[record.trace_id, record.span_id] = self._owner(record)

    def bury(self, process: int, at_ns: int) -> None:
        """End what a process left open: it died, and was last known to live at ``at_ns``."""
        for key, record in self._known.items():
            if record.process == process and record.end_ns is None and record.start_ns is not None:
                ended_ns = max(record.start_ns, at_ns)
                self._known[key] = record._replace(end_ns=ended_ns)
                self._plan(ended_ns, 1, key)

    def advance(self, now_ns: int) -> None:
        """Let everything happen that happened until ``now_ns``."""
        while self._changes and self._changes[0][0] <= now_ns:
            at_ns, ends, _, key = heapq.heappop(self._changes)
            if ends:
                self._end(key, at_ns)
            else:
                self._start(key, at_ns)

    def snapshot(self, now_ns: int, forget_after_s: float) -> Snapshot:
        """Agents at ``now_ns``; those with nothing open for longer than ``forget_after_s`` are left out."""
        alive = [
            agent for agent in self._agents.values() if agent.open or (now_ns - agent.since_ns) / _NS <= forget_after_s
        ]
        names = [agent.name for agent in alive]
        records = tuple(self._record(agent, now_ns, names.count(agent.name) > 1) for agent in alive)
        return Snapshot(
            time_unix_ns=now_ns,
            model="",
            device="",
            policy="",
            tiers=_NOTHING.tiers,
            link=_NOTHING.link,
            agents=records,
            events=(),
            totals=_NOTHING.totals,
        )

    def _plan(self, at_ns: int, ends: int, key: SpanKey) -> None:
        self._count += 1
        # At one instant starts (0) go before ends (1): a span of no length is open, then closed.
        heapq.heappush(self._changes, (at_ns, ends, self._count, key))
        self.last_ns = max(self.last_ns, at_ns)
        self.first_ns = at_ns if self.first_ns is None else min(self.first_ns, at_ns)

    def _owner(self, record: SpanRecord) -> str:
        """Who a span counts for: whom it names, else the nearest run around it, else its trace."""
        seen: set[SpanKey] = set()
        while True:
            if record.agent_id not in (None, UNKNOWN_AGENT):
                return str(record.agent_id)
            if record.conversation_id is not None and record.agent_label is not None:
                return f"{record.conversation_id}/{record.agent_label}"
            if record.kind == "agent":
                return f"{record.trace_id}/{record.span_id}"
            key = (record.trace_id, record.parent_span_id or "")
            parent = self._known.get(key)
            if parent is None or key in seen:
                return record.trace_id
            seen.add(key)
            record = parent

    def _start(self, key: SpanKey, at_ns: int) -> None:
        record, owner = self._known[key], self._owners[key]
        if record.kind == "other":
            return
        agent = self._agents.get(owner)
        if agent is None:
            agent = self._agents[owner] = _Agent(owner, owner, at_ns, since_ns=at_ns, counted_ns=at_ns)
        if record.kind == "agent":
            agent.name = printable(record.agent_name or record.name)
            agent.running += 1
            agent.ran = True
            parent = self._parent_agent(record, owner)
            if parent is not None:
                self._open(parent, key, _Call("tool", printable(record.name), parent.id, False), at_ns)
        elif agent.name == owner and record.agent_name:
            agent.name = printable(record.agent_name)
        inside = record.kind == "tool" and self._is_inside_model(record, owner)
        self._open(agent, key, _Call(record.kind, printable(record.name), owner, inside), at_ns)

    def _parent_agent(self, record: SpanRecord, owner: str) -> _Agent | None:
        """The agent that waits for this run, unless a tool call of its own says so already."""
        around = self._known.get((record.trace_id, record.parent_span_id or ""))
        if around is not None and around.kind == "tool":
            return None
        above = record.parent_agent_id
        if above is None and around is not None:
            above = self._owners.get((around.trace_id, around.span_id))
        return self._agents.get(above) if above is not None and above != owner else None

    def _is_inside_model(self, record: SpanRecord, owner: str) -> bool:
        """Whether a model call of the same agent is around it: some frameworks nest tools in the call that asked."""
        for _ in range(32):
            parent = self._known.get((record.trace_id, record.parent_span_id or ""))
            if parent is None:
                return False
            if parent.kind == "model":
                return self._owners.get((parent.trace_id, parent.span_id)) == owner
            record = parent
        return False

    def _open(self, agent: _Agent, key: SpanKey, call: _Call, at_ns: int) -> None:
        self._account(agent, at_ns)
        agent.open[key] = call
        self._settle(agent, at_ns)

    def _end(self, key: SpanKey, at_ns: int) -> None:
        record, owner = self._known[key], self._owners[key]
        for agent in (self._agents.get(owner), self._parent_agent(record, owner) if record.kind == "agent" else None):
            if agent is None or key not in agent.open:
                continue
            self._account(agent, at_ns)
            call = agent.open.pop(key)
            if call.kind == "agent":
                agent.running -= 1
            if call.kind == "model" and record.input_tokens is not None:
                agent.tokens = record.input_tokens + (record.output_tokens or 0)
            self._settle(agent, at_ns)

    @staticmethod
    def _account(agent: _Agent, at_ns: int) -> None:
        """Count the time since the last change for the state that ends now."""
        passed = max(0, at_ns - agent.counted_ns)
        if agent.state is AgentState.BLOCKED_RESIDENT:
            agent.blocked_ns += passed
        elif agent.state is AgentState.HUMAN:
            agent.human_ns += passed
        agent.counted_ns = max(at_ns, agent.counted_ns)

    @staticmethod
    def _settle(agent: _Agent, at_ns: int) -> None:
        """The state that holds from now on, the first that applies."""
        kinds = {call.kind for call in agent.open.values()}
        nested = any(call.kind == "tool" and call.inside_model for call in agent.open.values())
        tools = [call.name for call in agent.open.values() if call.kind == "tool"]
        if "model" in kinds and not nested:
            state = AgentState.GENERATING
        elif "human" in kinds and len(tools) <= 1:
            # A person is asked inside the tool call that needs the answer.
            state = AgentState.HUMAN
        elif tools:
            state = AgentState.BLOCKED_RESIDENT
        elif agent.ran and not agent.running:
            state = AgentState.HUMAN
        else:
            state = AgentState.IDLE
        tool = tools[-1] if tools and state is AgentState.BLOCKED_RESIDENT else None
        if state is not agent.state:
            agent.since_ns = at_ns
        agent.state, agent.tool = state, tool

    def _record(self, agent: _Agent, now_ns: int, named_twice: bool) -> AgentRecord:
        running = max(0, now_ns - agent.counted_ns)
        blocked = agent.blocked_ns + (running if agent.state is AgentState.BLOCKED_RESIDENT else 0)
        human = agent.human_ns + (running if agent.state is AgentState.HUMAN else 0)
        lived = now_ns - agent.born_ns - human
        return AgentRecord(
            agent=f"{agent.name} {agent.id[-6:]}" if named_twice else agent.name,
            state=agent.state,
            tool=agent.tool,
            since_s=max(0.0, (now_ns - agent.since_ns) / _NS),
            context_tokens=agent.tokens,
            vram_bytes=0,
            host_bytes=0,
            tokens_per_s=None,
            b=blocked / lived if lived > 0 else None,
            parks=0,
            restores=0,
            kept_tokens=0,
        )
