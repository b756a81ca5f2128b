"""``traced_tool``: a span, two records and two signals around every call of a tool."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

from opentelemetry.context import get_current

from . import attributes as names
from . import content, meters
from .diagnostics import internal_error
from .identity import UNKNOWN, Agent, owner_of
from .otlp_json import AttributeValue
from .runtime import current
from .signals import ToolEnded, ToolStarted
from .sinks import deliver, has_sinks
from .spans import OpenSpan, SpanTemplate
from .wrapping import name_of, wrap

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

CallId = str | Callable[..., str | None]

_MARK: Final = "__kvtrace_tool__"


class ToolDecorator(Protocol):
    """What ``traced_tool(...)`` with options returns: it keeps the type of what it decorates."""

    @overload
    def __call__(self, function: staticmethod[P, R_co]) -> staticmethod[P, R_co]: ...
    @overload
    def __call__(self, function: classmethod[T, P, R_co]) -> classmethod[T, P, R_co]: ...
    @overload
    def __call__(self, function: Callable[P, R_co]) -> Callable[P, R_co]: ...


@dataclass(frozen=True, slots=True)
class _Options:
    name: str | None = None
    call_id: CallId | None = None
    tool_type: str | None = None
    capture: content.Capture = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """Left on a wrapper, so that decorating again changes the options instead of doubling the span."""

    wrapper: Any
    function: Any
    options: _Options


@overload
def traced_tool(function: staticmethod[P, R_co], /) -> staticmethod[P, R_co]: ...
@overload
def traced_tool(function: classmethod[T, P, R_co], /) -> classmethod[T, P, R_co]: ...
@overload
def traced_tool(
    function: Callable[P, R_co],
    /,
    *,
    name: str | None = None,
    call_id: CallId | None = None,
    tool_type: str | None = None,
    capture: content.Capture = None,
) -> Callable[P, R_co]: ...
@overload
def traced_tool(
    *,
    name: str | None = None,
    call_id: CallId | None = None,
    tool_type: str | None = None,
    capture: content.Capture = None,
) -> ToolDecorator: ...
def traced_tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    call_id: CallId | None = None,
    tool_type: str | None = None,
    capture: content.Capture = None,
) -> Any:
    """Trace every call of a tool: its agent is blocked from the start of the call to its end.

    Works bare and with options, on sync and async functions, generators, methods, static and class methods (in either
    order), partials and callable objects. The call itself is not changed: same arguments, result, exceptions, task and
    context.

    Args:
        function: The tool. Left out when options come first: ``@traced_tool(name="search")``.
        name: Tool name; the function's own name by default.
        call_id: Id that the model gave this call, or a function of the call's arguments that returns it. By default
            the next one that :func:`generation` noted for this tool and agent.
        tool_type: ``"function"`` (default), ``"extension"`` or ``"datastore"``.
        capture: Record arguments and result: ``True``, or the names of the arguments to record (``"return"`` stands
            for the result). Off by default; ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` sets the default.

    Raises:
        TypeError: ``function`` cannot be called, or is a class.
    """
    options = _Options(name, call_id, tool_type, capture)
    if function is None:
        return functools.partial(_decorate, options=options)
    return _decorate(function, options)


def _decorate(function: Any, options: _Options) -> Any:
    function, options = _undecorate(function, options)
    tool = options.name or name_of(function)
    template = SpanTemplate(
        f"{names.OPERATION_EXECUTE_TOOL} {tool}",
        attributes={
            names.GEN_AI_OPERATION_NAME: names.OPERATION_EXECUTE_TOOL,
            names.GEN_AI_TOOL_NAME: tool,
            names.GEN_AI_TOOL_TYPE: options.tool_type or names.TOOL_TYPE_FUNCTION,
        },
    )

    parameters = content.Parameters(function)

    def open_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenSpan | None:
        try:
            if current().settings.disabled:
                return None
            return ToolSpan(template, tool, options, parameters, args, kwargs)
        except Exception as error:
            internal_error("the start of a tool span", error)
            return None

    wrapper = wrap(function, open_call)
    inner = getattr(wrapper, "__func__", wrapper)  # of a staticmethod or classmethod
    if isinstance(inner, types.FunctionType):
        setattr(inner, _MARK, _Mark(inner, getattr(function, "__func__", function), options))
    return wrapper


def _undecorate(function: Any, options: _Options) -> tuple[Any, _Options]:
    """Return the tool below a wrapper of ours, with its options where the new ones say nothing."""
    mark = getattr(function, _MARK, None)
    bound_to = function.__self__ if inspect.ismethod(function) else None
    target = function.__func__ if inspect.ismethod(function) else function
    # functools.wraps copies our mark onto other people's wrappers, which must stay in place.
    if not isinstance(mark, _Mark) or mark.wrapper is not target:
        return function, options
    below = mark.function if bound_to is None else types.MethodType(mark.function, bound_to)
    asked = {key: value for key in _Options.__slots__ if (value := getattr(options, key)) is not None}
    return below, replace(mark.options, **asked)


class ToolSpan(OpenSpan):
    """The span of one tool call, and its signals."""

    __slots__ = ("call_id", "labels", "tool", "wanted")

    def __init__(
        self,
        template: SpanTemplate,
        tool: str,
        options: _Options,
        parameters: content.Parameters,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._ended = True
        context = get_current()
        agent = owner_of(context)
        self.tool, self.labels = tool, template.attributes
        self.wanted = content.resolve(options.capture, current().settings.capture_content)
        self.call_id = _call_id(options.call_id, agent, tool, args, kwargs)
        extra: dict[str, AttributeValue] = {}
        if self.call_id is not None:
            extra[names.GEN_AI_TOOL_CALL_ID] = self.call_id
        if self.wanted:
            extra.update(content.arguments(parameters, args, kwargs, self.wanted))
        super().__init__(template, agent=agent, extra=extra, context=context)

    def _started(self) -> None:
        if has_sinks():
            deliver(ToolStarted(self.trace_id, self.span_id, self.start_unix_ns, self.tool, *self._owner()))

    def _returned(self, result: object) -> None:
        if self.wanted:
            self.late_attributes.update(content.result(result, self.wanted))

    def _finished(self, end_unix_ns: int, error_type: str | None) -> None:
        meters.record(names.METRIC_TOOL_DURATION, end_unix_ns - self.start_unix_ns, self.labels, error_type)
        if has_sinks():
            deliver(ToolEnded(self.trace_id, self.span_id, end_unix_ns, self.tool, *self._owner(), error_type))

    def _owner(self) -> tuple[str | None, str | None, str | None]:
        agent = self.agent
        if agent is None or agent is UNKNOWN:
            return None, None, self.call_id
        return agent.id, agent.conversation, self.call_id


def _call_id(
    asked: CallId | None, agent: Agent, tool: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    if asked is None:
        return None if agent is UNKNOWN else agent.take_call(tool)
    if isinstance(asked, str):
        return asked
    try:
        found = asked(*args, **kwargs)
        return None if found is None else str(found)
    except Exception as error:
        internal_error("the function that was given as call_id", error)
        return None
