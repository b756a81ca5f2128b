"""Whose request this is, from what it carries. All of it are hints: a wrong one costs time, never correctness."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvtrace.tracer import attributes as names

from .encoding import json_bytes

_REMEMBERED: Final = 16384  # call ids, and as many conversations
_MOST_NAME: Final = 256  # characters of an agent's id

Message = Mapping[str, Any]


class Identities:
    """Finds the agent of a request.

    The first of: the header ``X-Kvtrace-Agent``, ``kvtrace.agent.id`` in W3C baggage, ``prompt_cache_key``, tool call
    ids in the messages that this server handed out, ``user``, the trace of ``traceparent``. Call ids come before the
    last two, since they name one conversation for sure. Where none is there, a conversation is known by its messages up
    to the last answer, which are the whole of an earlier request; else it is a new agent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, str] = OrderedDict()
        self._conversations: OrderedDict[bytes, str] = OrderedDict()

    def find(
        self,
        headers: Mapping[str, str],
        *,
        cache_key: str | None = None,
        user: str | None = None,
        messages: Sequence[Message] = (),
    ) -> str:
        """The agent's id."""
        named = _named(headers) or _trimmed(cache_key) or self._by_calls(messages) or _trimmed(user) or _trace(headers)
        if named:
            return named
        if not messages:
            return f"anonymous-{secrets.token_hex(6)}"
        return self._by_conversation(messages)

    def handed_out(self, agent: str, call_ids: Iterable[str]) -> None:
        """Note that an answer to ``agent`` asks for these tool calls."""
        with self._lock:
            for call in call_ids:
                _remember(self._calls, call, agent)

    def _by_calls(self, messages: Sequence[Message]) -> str | None:
        # The newest first: where histories were merged, the last call is its owner's.
        return next((self._calls[call] for call in _call_ids(reversed(messages)) if call in self._calls), None)

    def _by_conversation(self, messages: Sequence[Message]) -> str:
        answers = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
        with self._lock:
            known = self._conversations.get(_digest(messages[: answers[-1]])) if answers else None
            agent = known or f"anonymous-{secrets.token_hex(6)}"
            _remember(self._conversations, _digest(messages), agent)
        return agent


def _named(headers: Mapping[str, str]) -> str | None:
    if header := headers.get(names.HEADER_AGENT.lower()):
        return _trimmed(unquote(header))
    # Read here: OpenTelemetry's propagator writes a warning for whatever a client gets wrong in it, request for request.
    for member in headers.get("baggage", "").split(","):
        key, _, value = member.partition(";")[0].partition("=")
        if key.strip() == names.AGENT_ID:
            return _trimmed(unquote_plus(value))
    return None


def _trace(headers: Mapping[str, str]) -> str | None:
    if "traceparent" not in headers:
        return None
    context = TraceContextTextMapPropagator().extract({"traceparent": headers["traceparent"]}, Context())
    span = get_current_span(context).get_span_context()
    return f"{span.trace_id:032x}" if span.is_valid else None


def _trimmed(name: str | None) -> str | None:
    name = (name or "").strip()[:_MOST_NAME]
    return None if name == names.UNKNOWN_AGENT else name or None


def _call_ids(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        call = message.get("tool_call_id")
        if isinstance(call, str):
            yield call
        calls = message.get("tool_calls")
        for one in calls if isinstance(calls, list) else ():
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                yield one["id"]


def _digest(messages: Sequence[Message]) -> bytes:
    return blake2b(json_bytes(messages), digest_size=16).digest()


def _remember(memory: OrderedDict[Any, str], key: str | bytes, agent: str) -> None:
    memory[key] = agent
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
