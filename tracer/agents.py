"""``agent`` opens the timeline of one agent; ``human_wait`` is the time in which it waits for a person."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.context import get_current

from . import attributes as names
from .identity import Agent, carried_agent, enter_live, leave_live, with_agent
from .otlp_json import AttributeValue
from .runtime import current
from .scopes import Scope
from .spans import OpenSpan, SpanTemplate


class agent(Scope[Agent]):  # noqa: N801 - used like a function
    """Run a block, or each call of a decorated function, as one agent.

    Everything traced inside belongs to it, in other tasks, threads that carry OpenTelemetry's context, and services
    that read W3C baggage too. Yields the :class:`Agent`.

    Args:
        name: Name for people; also the span's, ``invoke_agent {name}``.
        id: Owner of one growing context, as the engine's ``submit(agent_id)`` takes it. Fresh for each run by default;
            the same id again continues the same timeline.
        conversation: Conversation the agent works in, if there is one.
    """

    def __init__(
        self,
        name: str,
        id: str | None = None,  # noqa: A002 - the public name of the argument
        *,
        conversation: str | None = None,
    ) -> None:
        super().__init__()
        self._name, self._conversation = name, conversation
        self._id = None if id is None else str(id)
        self._template = SpanTemplate(
            f"{names.OPERATION_INVOKE_AGENT} {name}",
            attributes={names.GEN_AI_OPERATION_NAME: names.OPERATION_INVOKE_AGENT},
        )

    def _open(self) -> tuple[OpenSpan, Agent]:
        context = get_current()
        parent = carried_agent(context)
        agent_id = self._id if self._id is not None else f"{current().ids.span_id():016x}"
        parent_id = parent.id if parent is not None and parent.id != agent_id else None
        opened = Agent(agent_id, self._name, parent_id, self._conversation)
        extra: dict[str, AttributeValue] = {} if parent_id is None else {names.PARENT_AGENT_ID: parent_id}
        span = _AgentSpan(self._template, agent=opened, extra=extra, context=with_agent(opened, context))
        return span, opened


class _AgentSpan(OpenSpan):
    """A span whose agent is live until its end."""

    __slots__ = ("_live",)

    def __init__(self, template: SpanTemplate, *, agent: Agent, **rest: Any) -> None:
        self._live = enter_live(agent)
        super().__init__(template, agent=agent, **rest)

    def end(self, error: BaseException | None = None) -> None:
        """Let the agent go and end the span."""
        leave_live(self._live)
        super().end(error)


_HUMAN_WAIT: Final = SpanTemplate("human_wait", attributes={names.GEN_AI_OPERATION_NAME: names.OPERATION_HUMAN_WAIT})


class human_wait(Scope[None]):  # noqa: N801 - used like a function
    """Record the time in which the agent waits for a person: an approval, an answer, the next message.

    ``reason`` is recorded as it is given. Works as a context manager and as a decorator.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__()
        self._reason = reason

    def _open(self) -> tuple[OpenSpan, None]:
        extra: dict[str, AttributeValue] = {} if self._reason is None else {names.HUMAN_WAIT_REASON: self._reason}
        return OpenSpan(_HUMAN_WAIT, extra=extra), None
