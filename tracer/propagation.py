"""Identity across borders: request headers, thread pools and process pools."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Generic, ParamSpec, TypeVar
from urllib.parse import quote

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from . import attributes as names
from .identity import Agent, find_agent, with_agent
from .spans import reset_context

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def headers() -> dict[str, str]:
    """Return the headers that tell a model server whose request this is, made here and now.

    ``X-Kvtrace-Agent`` holds the agent's id, percent-encoded where it is not printable ASCII; ``baggage`` and
    ``traceparent`` are W3C's. What is not known is left out.
    """
    context = get_current()
    carrier: dict[str, str] = {}
    agent = find_agent(context)
    if agent is not None:
        context = with_agent(agent, context)
        carrier[names.HEADER_AGENT] = quote(agent.id, safe=_PLAIN, errors="replace")
    W3CBaggagePropagator().inject(carrier, context)
    TraceContextTextMapPropagator().inject(carrier, context)
    return carrier


class propagate(Generic[P, R]):  # noqa: N801 - used like a function
    """Give a function the agent and span that are current now, wherever it is called later.

    For work handed to threads or processes: ``pool.submit(propagate(work), …)``. The result can be pickled if the
    function can. The caller's context is as before when the call returns.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._context = get_current()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in the context that was kept."""
        token = attach(self._context)
        try:
            return self._function(*args, **kwargs)
        finally:
            reset_context(token)

    def __getstate__(self) -> dict[str, Any]:
        agent = find_agent(self._context)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, self._context)
        identity = None if agent is None else (agent.id, agent.name, agent.parent_id, agent.conversation)
        return {"function": self._function, "agent": identity, "carrier": carrier}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._function = state["function"]
        context = TraceContextTextMapPropagator().extract(state["carrier"], Context())
        identity = state["agent"]
        self._context = context if identity is None else with_agent(Agent(*identity), context)


class PropagatingExecutor(Executor):
    """An executor whose work belongs to the agent that submitted it. Takes over ``inner``, shutdown included."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit ``fn`` with the current agent and span."""
        return self._inner.submit(propagate(fn), *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the inner executor down."""
        self._inner.shutdown(wait, cancel_futures=cancel_futures)
