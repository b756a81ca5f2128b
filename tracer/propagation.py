"""Identity across borders: request headers, thread pools and process pools."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from typing import Any, Final, Generic, ParamSpec, TypeVar
from urllib.parse import quote

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from . import attributes as names
from .diagnostics import internal_error
from .identity import Agent, find_agent, with_agent
from .spans import reset_context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

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


class _Done:
    """What ``await`` finishes with at once."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE: Final = _Done()


def event_hook(request: Any) -> _Done:
    """Add :func:`headers` to a request of httpx or httpx2; a header that the caller set stays.

    A request hook of sync clients, which ignore what it returns, and of async ones, which await it:
    ``httpx.AsyncClient(event_hooks={"request": [event_hook]})``. Runs where the request is made, so each request bears
    the agent of its own task. Never raises.
    """
    try:
        for name, value in headers().items():
            request.headers.setdefault(name, value)
    except Exception as error:
        internal_error("adding headers to a request", error)
    return _DONE


def instrument_client(client: T) -> T:
    """Let every request of a client say whose it is, and return the client.

    For the clients of ``openai`` and others that are built on httpx or httpx2 (sync, async, and copies made by
    ``with_options``), and for clients of these two. A second time changes nothing.

    Raises:
        TypeError: The client has no httpx hooks; send :func:`headers` along by other means.
    """
    for inner in (client, getattr(client, "_client", None)):
        hooks = getattr(inner, "event_hooks", None)
        if isinstance(hooks, dict):
            known = list(hooks.get("request", ()))
            if event_hook not in known:
                inner.event_hooks = {**hooks, "request": [*known, event_hook]}  # type: ignore[union-attr]
            return client
    raise TypeError(
        f"instrument_client() cannot add to the requests of {type(client).__qualname__}: it takes httpx clients and "
        "those built on them, such as openai.OpenAI(). Pass kvtrace.tracer.headers() with each request instead."
    )


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
