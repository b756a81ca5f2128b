"""OTLP's protobuf messages, as far as signals need them: the tags of their fields, and the encoding of tool spans.

The numbers are those of opentelemetry-proto's ``trace.proto``, ``logs.proto``, ``common.proto`` and the collector
services, and of google.rpc's ``status.proto``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from . import attributes as names
from .otlp_json import KIND_INTERNAL, STATUS_ERROR
from .signals import Signal, ToolEnded
from .wire import (
    FIXED64,
    LENGTH,
    VARINT,
    tag,
    write_bytes,
    write_fixed64,
    write_number,
    write_text,
)

# Requests of traces and logs nest alike: request > resource > scope > span or log record.
REQUEST_RESOURCES: Final = tag(1, LENGTH)
RESOURCE: Final = tag(1, LENGTH)
RESOURCE_ATTRIBUTES: Final = tag(1, LENGTH)
RESOURCE_SCOPES: Final = tag(2, LENGTH)
SCOPE: Final = tag(1, LENGTH)
SCOPE_NAME: Final = tag(1, LENGTH)
SCOPE_VERSION: Final = tag(2, LENGTH)
SCOPE_RECORDS: Final = tag(2, LENGTH)

SPAN_TRACE_ID: Final = tag(1, LENGTH)
SPAN_SPAN_ID: Final = tag(2, LENGTH)
SPAN_PARENT_ID: Final = tag(4, LENGTH)
SPAN_NAME: Final = tag(5, LENGTH)
SPAN_KIND: Final = tag(6, VARINT)
SPAN_START: Final = tag(7, FIXED64)
SPAN_END: Final = tag(8, FIXED64)
SPAN_ATTRIBUTES: Final = tag(9, LENGTH)
SPAN_STATUS: Final = tag(15, LENGTH)
STATUS_CODE: Final = tag(3, VARINT)

LOG_TIME: Final = tag(1, FIXED64)
LOG_ATTRIBUTES: Final = tag(6, LENGTH)
LOG_TRACE_ID: Final = tag(9, LENGTH)
LOG_SPAN_ID: Final = tag(10, LENGTH)
LOG_OBSERVED: Final = tag(11, FIXED64)
LOG_EVENT_NAME: Final = tag(12, LENGTH)

ATTRIBUTE_KEY: Final = tag(1, LENGTH)
ATTRIBUTE_VALUE: Final = tag(2, LENGTH)
VALUE_STRING: Final = tag(1, LENGTH)

RESPONSE_PARTIAL: Final = tag(1, LENGTH)
PARTIAL_REJECTED: Final = tag(1, VARINT)
PARTIAL_MESSAGE: Final = tag(2, LENGTH)
RPC_CODE: Final = tag(1, VARINT)
RPC_MESSAGE: Final = tag(2, LENGTH)


def encode_signal(signal: Signal, start_unix_ns: int) -> bytes:
    """Return a signal as an OTLP span: without an end where it is a start, complete where it is an end."""
    parts = [
        write_bytes(SPAN_TRACE_ID, bytes.fromhex(signal.trace_id)),
        write_bytes(SPAN_SPAN_ID, bytes.fromhex(signal.span_id)),
        write_text(SPAN_NAME, f"{names.OPERATION_EXECUTE_TOOL} {signal.tool}"),
        write_number(SPAN_KIND, KIND_INTERNAL),
        write_fixed64(SPAN_START, start_unix_ns),
        *(encode_attribute(SPAN_ATTRIBUTES, key, value) for key, value in _attributes(signal).items()),
    ]
    if isinstance(signal, ToolEnded):
        parts.append(write_fixed64(SPAN_END, signal.time_unix_ns))
        if signal.error is not None:
            parts.append(write_bytes(SPAN_STATUS, write_number(STATUS_CODE, STATUS_ERROR)))
    return b"".join(parts)


def encode_attribute(field: int, key: str, value: str) -> bytes:
    """Return a key and its string value as the attribute ``field``."""
    any_value = write_text(VALUE_STRING, value)
    return write_bytes(field, write_text(ATTRIBUTE_KEY, key) + write_bytes(ATTRIBUTE_VALUE, any_value))


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends: a process's resource and scope, encoded once for all of its requests."""

    resource: bytes
    scope: bytes

    @classmethod
    def of(cls, resource: Mapping[str, str], scope_name: str, scope_version: str) -> Sender:
        """Encode the resource's attributes and the scope."""
        about = b"".join(encode_attribute(RESOURCE_ATTRIBUTES, key, value) for key, value in resource.items())
        scope = write_text(SCOPE_NAME, scope_name) + write_text(SCOPE_VERSION, scope_version)
        return cls(write_bytes(RESOURCE, about), write_bytes(SCOPE, scope))


def encode_request(spans: Iterable[bytes], sender: Sender) -> bytes:
    """Return the request that carries encoded spans of one process."""
    records = b"".join(write_bytes(SCOPE_RECORDS, span) for span in spans)
    return write_bytes(REQUEST_RESOURCES, sender.resource + write_bytes(RESOURCE_SCOPES, sender.scope + records))


def _attributes(signal: Signal) -> dict[str, str]:
    found = {
        names.GEN_AI_OPERATION_NAME: names.OPERATION_EXECUTE_TOOL,
        names.GEN_AI_TOOL_NAME: signal.tool,
        names.AGENT_ID: signal.agent,
        names.GEN_AI_CONVERSATION_ID: signal.conversation,
        names.GEN_AI_TOOL_CALL_ID: signal.call_id,
        names.ERROR_TYPE: signal.error if isinstance(signal, ToolEnded) else None,
    }
    return {key: value for key, value in found.items() if value is not None}
