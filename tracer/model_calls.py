"""``generation``: the span of one model call, and what the caller knows about its response."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from opentelemetry.context import create_key, get_current, set_value

from . import attributes as names
from . import meters
from .diagnostics import internal_error
from .identity import ANY_TOOL, UNKNOWN, owner_of
from .otlp_json import KIND_CLIENT, AttributeValue
from .scopes import Scope
from .spans import OpenSpan, SpanTemplate

_GENERATION_KEY: Final = create_key("kvtrace-generation")


class Generation:
    """What ``generation(...)`` yields: the caller tells it what the response shows. No method raises."""

    __slots__ = ("_queued", "_span")

    def __init__(self) -> None:
        self._queued: list[int] = []
        # Weak, so that a span which nobody ends is dropped, and thereby ended, at once.
        self._span: Callable[[], OpenSpan | None] = _no_span

    def usage(
        self,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        *,
        cache_read_tokens: int | None = None,
        prefilled_tokens: int | None = None,
        reprefilled_tokens: int | None = None,
    ) -> None:
        """Set token counts: of prompt and answer, of the prompt read from a cache, computed, and computed again."""
        counts = {
            names.GEN_AI_USAGE_INPUT_TOKENS: input_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: output_tokens,
            names.GEN_AI_USAGE_CACHE_READ: cache_read_tokens,
            names.PREFILLED_TOKENS: prefilled_tokens,
            names.REPREFILLED_TOKENS: reprefilled_tokens,
        }
        self._set({key: count for key, count in counts.items() if count is not None})

    def finish(self, *reasons: str) -> None:
        """Set why the model stopped: ``"stop"``, ``"length"``, ``"tool_calls"`` …, one for each choice."""
        self._set({names.GEN_AI_RESPONSE_FINISH_REASONS: tuple(str(reason) for reason in reasons)})

    def response_model(self, model: str) -> None:
        """Set the model that answered."""
        self._set({names.GEN_AI_RESPONSE_MODEL: str(model)})

    def first_token(self) -> None:
        """Note that the first chunk arrived now; later calls change nothing."""
        span = self._span()
        if span is not None and names.GEN_AI_TIME_TO_FIRST_CHUNK not in span.late_attributes:
            waited_ns = span.runtime.clock.unix_ns() - span.start_unix_ns
            self._set({names.GEN_AI_TIME_TO_FIRST_CHUNK: waited_ns / 1e9})

    def queued(self, intervals: Iterable[tuple[int, int]]) -> None:
        """Add (start, end) pairs in unix ns when the engine let the request wait, for a slot or for its cache."""
        try:
            self._queued += [int(instant) for start, end in intervals for instant in (start, end)]
        except Exception as error:
            internal_error("reading the queued intervals", error)
            return
        self._set({names.QUEUED_INTERVALS: tuple(self._queued)})

    def tool_calls(self, calls: Iterable[Any]) -> None:
        """Note the tool calls of the response, in order; the agent's next ``traced_tool`` calls take their ids.

        A call is a ``(tool name, id)`` pair, a tool call as the OpenAI and Anthropic clients return it (object or
        mapping), or an id alone, which any tool takes that has none by name. They take the place of those of the agent's response before.
        """
        try:
            pairs = [pair for call in calls if (pair := _name_and_id(call)) is not None]
        except Exception as error:
            internal_error("reading the tool calls of a response", error)
            return
        self._set({names.RESPONSE_TOOL_CALL_IDS: tuple(call_id for _, call_id in pairs)})
        span = self._span()
        agent = span.agent if span is not None else None
        if agent is not None and agent is not UNKNOWN:
            agent.expect_calls(pairs)

    def _set(self, attributes: Mapping[str, AttributeValue]) -> None:
        span = self._span()
        if span is not None:
            span.late_attributes.update(attributes)


def _no_span() -> None:
    """Stand in for the weak reference to a span, where there is none."""


class generation(Scope[Generation]):  # noqa: N801 - used like a function
    """Record a model call: a block, or each call of a decorated function (sync, async or a generator of chunks).

    The block gets a :class:`Generation` to fill in; a decorated function finds its own by :func:`current_generation`.

    Args:
        model: Model that is asked for; also in the span's name, ``chat {model}``.
        provider: Who serves it, for example ``"openai"`` or ``"kvtrace"``.
        operation: ``"chat"``, or another operation of the GenAI conventions such as ``"text_completion"``.
    """

    def __init__(
        self, model: str | None = None, *, provider: str | None = None, operation: str = names.OPERATION_CHAT
    ) -> None:
        super().__init__()
        attributes = {names.GEN_AI_OPERATION_NAME: operation}
        if model is not None:
            attributes[names.GEN_AI_REQUEST_MODEL] = model
        if provider is not None:
            attributes[names.GEN_AI_PROVIDER_NAME] = provider
        self._template = SpanTemplate(f"{operation} {model}" if model else operation, KIND_CLIENT, attributes)

    def _open(self) -> tuple[OpenSpan, Generation]:
        handle = Generation()
        context = get_current()
        span = _GenerationSpan(
            self._template, agent=owner_of(context), context=set_value(_GENERATION_KEY, handle, context)
        )
        span.own(handle, self._template.attributes)
        return span, handle


class _GenerationSpan(OpenSpan):
    """A span that its handle points at, until it ends."""

    __slots__ = ("__weakref__", "_handle", "_labels")

    def own(self, handle: Generation, labels: Mapping[str, AttributeValue]) -> None:
        """Let ``handle`` fill this span in; ``labels`` are those of its metric."""
        self._handle, self._labels = handle, labels
        if not self._ended:
            handle._span = weakref.ref(self)

    def end(self, error: BaseException | None = None) -> None:
        """End the span; its handle tells it nothing more."""
        super().end(error)
        self._handle._span = _no_span

    def _finished(self, end_unix_ns: int, error_type: str | None) -> None:
        labels, model = self._labels, self.late_attributes.get(names.GEN_AI_RESPONSE_MODEL)
        if model is not None:
            labels = {**labels, names.GEN_AI_RESPONSE_MODEL: model}
        meters.record(names.METRIC_INFERENCE_DURATION, end_unix_ns - self.start_unix_ns, labels, error_type)


def current_generation() -> Generation:
    """Return the handle of the model call that runs here, or one that ignores everything where none runs."""
    handle = get_current().get(_GENERATION_KEY)
    return handle if isinstance(handle, Generation) else Generation()


def _name_and_id(call: Any) -> tuple[str, str] | None:
    """Read one tool call in any of the shapes that clients return; an id alone goes by no name."""
    if isinstance(call, str):
        return ANY_TOOL, call
    if isinstance(call, tuple):
        name, call_id = call
        return str(name), str(call_id)
    inner = _get(call, "function")
    name = _get(call if inner is None else inner, "name")
    call_id = _get(call, "id")
    return None if name is None or call_id is None else (str(name), str(call_id))


def _get(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, Mapping) else getattr(item, key, None)
