"""Who owns a span: agents carried by OpenTelemetry's context, W3C baggage, or as a process's only live agent.

The agent travels as a key of the OpenTelemetry context rather than in a variable of its own, so that whatever carries
the span (a generator's steps, a pool helper, an instrumented thread) carries the agent with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from opentelemetry import baggage, trace
from opentelemetry.context import Context, create_key, get_current, set_value

from . import attributes as names
from .diagnostics import COUNTS
from .otlp_json import encode_attributes

ANY_TOOL: Final = ""  # the tool name of a call of which only the id is known
_AGENT_KEY: Final = create_key("kvtrace-agent")


def _identity_attributes(agent_id: str, name: str | None, conversation: str | None) -> dict[str, str]:
    attributes = {names.AGENT_ID: agent_id}
    if name is not None:
        attributes[names.GEN_AI_AGENT_NAME] = name
    if conversation is not None:
        attributes[names.GEN_AI_CONVERSATION_ID] = conversation
    return attributes


class Agent:
    """An agent, the owner of one growing context (one KV sequence): what ``agent(...)`` yields.

    ``id`` is unique to one run of the agent unless the caller chose it. ``parent_id`` is the agent that started it,
    ``conversation`` the conversation it works in; both may be ``None``.
    """

    __slots__ = ("_calls", "attributes", "attributes_json", "conversation", "id", "name", "parent_id")

    def __init__(
        self,
        id: str,  # noqa: A002 - the public name of the field
        name: str | None = None,
        parent_id: str | None = None,
        conversation: str | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.parent_id = parent_id
        self.conversation = conversation
        self.attributes = _identity_attributes(id, name, conversation)
        self.attributes_json = encode_attributes(self.attributes)
        self._calls: dict[str, deque[str]] = {}

    def __repr__(self) -> str:
        return f"Agent(id={self.id!r}, name={self.name!r})"

    def expect_calls(self, calls: Iterable[tuple[str, str]]) -> None:
        """Remember the (tool name, call id) pairs of a model's response, in place of those of the one before."""
        expected: dict[str, deque[str]] = {}
        for tool, call_id in calls:
            expected.setdefault(tool, deque()).append(call_id)
        self._calls = expected

    def take_call(self, tool: str) -> str | None:
        """Return and forget the oldest call id that waits for ``tool``, else for any tool."""
        waiting = self._calls.get(tool) or self._calls.get(ANY_TOOL)
        try:
            return waiting.popleft() if waiting else None
        except IndexError:  # another thread of the agent took the last one meanwhile
            return None


UNKNOWN: Final = Agent(names.UNKNOWN_AGENT)
# Agents whose context is open somewhere in this process, one entry per opening, keyed by a token.
_live: dict[object, Agent] = {}
# Agents of other libraries' open spans, by span id; kept by the span processor.
_owners: dict[int, Agent] = {}
# Whom spans belong to that no agent can be named for, and whether somebody said that this process is that agent alone.
_process: Agent | None = None
_process_is_all = False


def with_agent(agent: Agent, context: Context) -> Context:
    """Return ``context`` with ``agent`` as its owner, in W3C baggage too, for other processes."""
    context = set_value(_AGENT_KEY, agent, context)
    context = baggage.set_baggage(names.AGENT_ID, agent.id, context)
    if agent.conversation is not None:
        return baggage.set_baggage(names.GEN_AI_CONVERSATION_ID, agent.conversation, context)
    return baggage.remove_baggage(names.GEN_AI_CONVERSATION_ID, context)


def carried_agent(context: Context) -> Agent | None:
    """Return the agent that ``context`` names by itself or in its baggage."""
    agent = context.get(_AGENT_KEY)
    if agent is not None:
        return agent  # type: ignore[return-value]
    if not context:
        return None
    agent_id = baggage.get_baggage(names.AGENT_ID, context)
    if agent_id is None:
        return None
    conversation = baggage.get_baggage(names.GEN_AI_CONVERSATION_ID, context)
    return Agent(str(agent_id), conversation=None if conversation is None else str(conversation))


def find_agent(context: Context) -> Agent | None:
    """Return the agent of ``context``, else the only one that lives in this process, else ``None``."""
    agent = carried_agent(context)
    if agent is None and _owners:
        agent = span_owner(trace.get_current_span(context).get_span_context().span_id)
    return agent or _only_live_agent()


def span_owner(span_id: int) -> Agent | None:
    """Return the agent that an open span of another library belongs to."""
    return _owners.get(span_id)


def own_span(span_id: int, agent: Agent) -> None:
    """Note that an open span of another library belongs to ``agent``."""
    _owners[span_id] = agent


def disown_span(span_id: int) -> None:
    """Forget a span that ended."""
    _owners.pop(span_id, None)


def set_process_agent(agent: Agent | None, *, explicit: bool = False) -> None:
    """Let ``agent`` own what would else belong to nobody in this process; ``explicit``: other libraries' agents too."""
    global _process, _process_is_all
    _process, _process_is_all = agent, explicit


def process_agent(*, only_if_explicit: bool = False) -> Agent | None:
    """Return the agent that this process as a whole is, if it was told so."""
    return _process if _process_is_all or not only_if_explicit else None


def owner_of(context: Context) -> Agent:
    """Return the agent that a span opened in ``context`` belongs to; :data:`UNKNOWN`, counted, rather than a guess."""
    agent = find_agent(context)
    if agent is None:
        COUNTS.unknown_agents += 1
        return UNKNOWN
    return agent


def current_agent() -> Agent | None:
    """Return the agent that a span opened here and now would belong to, or ``None``."""
    return find_agent(get_current())


def enter_live(agent: Agent) -> object:
    """Note an open agent context; give the returned token back to :func:`leave_live`."""
    token = object()
    _live[token] = agent
    return token


def leave_live(token: object) -> None:
    """Forget an agent context; a second time does nothing."""
    _live.pop(token, None)


def replace_live(live: dict[object, Agent]) -> dict[object, Agent]:
    """Put ``live`` in the place of the live agents, for tests, and return those that were there."""
    global _live
    before, _live = _live, live
    return before


def keep_carried_only() -> None:
    """Forget the live agents of a parent process, after a fork, but for the one whose context forked."""
    _live.clear()
    if (agent := carried_agent(get_current())) is not None:
        enter_live(agent)


def _only_live_agent() -> Agent | None:
    if not _live:
        return _process
    agents = {agent.id: agent for agent in list(_live.values())}
    return next(iter(agents.values())) if len(agents) == 1 else None
