"""OTLP in protobuf: the Collector's file exporter with ``format: proto``, and bare requests.

The exporter writes each message behind its length (4 bytes, big-endian); with ``compression: zstd`` each message is
compressed by itself, and may then be JSON as well. A bare file is one ``TracesData`` or ``ExportTraceServiceRequest``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ..normal import Notes, SpanRecord
from .build import build_record
from .genai import WANTED
from .otlp_json import Reader
from .resource import RESOURCE_WANTED, process_of
from .values import BadValueError, identifier, instant

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

KIND: Final = "OTLP protobuf"

_LENGTH: Final = 4
_MAX_MESSAGE: Final = 2**30
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HOMES: Final = ("compression.zstd", "backports.zstd")  # the first since Python 3.14
_RESOURCE_SPANS: Final = 0x0A  # tag of field 1, a message
_INNER_TAGS: Final = (0x0A, 0x12, 0x1A)  # resource, scope_spans, schema_url
_NO_ZSTD: Final = "compressed with zstd: run `pip install backports.zstd` and try again"
_STATUS_ERROR: Final = 2


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like OTLP in protobuf, bare or behind lengths, or like zstd."""
    return head.startswith(_ZSTD) or _is_message(head) or _is_framed(head)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    with path.open("rb") as file:
        head = file.read(64)
        file.seek(0)
        if head.startswith(_ZSTD):
            notes.skip(0, "the whole file is compressed: unpack it with `zstd -d` first")
            return
        reader = _ProtoReader(notes, Reader(notes))
        for number, message in enumerate(_messages(file, head, notes), 1):
            yield from reader.spans(message, number)


def _is_framed(head: bytes) -> bool:
    length = int.from_bytes(head[:_LENGTH], "big")
    body = head[_LENGTH:]
    return 0 < length < _MAX_MESSAGE and (body.startswith(_ZSTD) or _is_message(body, length))


def _is_message(body: bytes, length: int | None = None) -> bool:
    """Whether bytes begin with field 1 of a message that itself begins with a field of ``ResourceSpans``."""
    if len(body) < 3 or body[0] != _RESOURCE_SPANS:
        return False
    size = shift = 0
    for at, byte in enumerate(body[1:6], 2):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            fits = length is None or at + size <= length
            return fits and size >= 2 and at < len(body) and body[at] in _INNER_TAGS
    return False


def _messages(file: BinaryIO, head: bytes, notes: Notes) -> Iterator[bytes]:
    if not _is_framed(head):
        yield file.read()
        return
    number = 0
    while prefix := file.read(_LENGTH):
        number += 1
        length = int.from_bytes(prefix, "big")
        message = file.read(length) if len(prefix) == _LENGTH and length < _MAX_MESSAGE else b""
        if len(message) < length or len(prefix) < _LENGTH:
            notes.skip(number, f"message {number} is cut off or no message")
            return
        yield message


def _decompressor() -> Callable[[bytes], bytes] | None:
    for home in _ZSTD_HOMES:
        try:
            decompress: Callable[[bytes], bytes] = import_module(home).decompress
        except ImportError:
            continue
        return decompress
    return None


@dataclass(slots=True)
class _ProtoReader:
    """Decodes messages; ``number`` of a message stands where text formats have a line."""

    notes: Notes
    json_reader: Reader

    def spans(self, message: bytes, number: int) -> Iterator[SpanRecord]:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

        plain = self.unpacked(message, number)
        if plain is None:
            return
        if plain.startswith(b"{"):
            yield from self.from_json(plain, number)
            return
        try:
            data = TracesData.FromString(plain)
        except DecodeError:
            self.notes.skip(number, f"message {number} is no OTLP trace in protobuf")
            return
        for resource_spans in data.resource_spans:
            process = self.notes.process(process_of(_attributes(resource_spans.resource.attributes, RESOURCE_WANTED)))
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    try:
                        yield self.record(span, process, number)
                    except BadValueError as error:
                        self.notes.skip(number, str(error))

    def unpacked(self, message: bytes, number: int) -> bytes | None:
        if not message.startswith(_ZSTD):
            return message
        decompress = _decompressor()
        if decompress is None:
            self.notes.skip(0, _NO_ZSTD)
            return None
        try:
            return decompress(message)
        except Exception as error:  # the two homes have no error class in common
            self.notes.skip(number, f"message {number} cannot be unpacked: {error}")
            return None

    def from_json(self, message: bytes, number: int) -> Iterator[SpanRecord]:
        self.json_reader.line = number
        try:
            document = json.loads(message)
        except (ValueError, RecursionError) as error:
            self.notes.skip(number, f"message {number} is not JSON: {error}")
            return
        yield from self.json_reader.spans(document)

    def record(self, span: Span, process: int, number: int) -> SpanRecord:
        return build_record(
            self.notes,
            number,
            process,
            ids=(
                identifier(span.trace_id.hex(), 32, "trace_id"),
                identifier(span.span_id.hex(), 16, "span_id"),
                identifier(span.parent_span_id.hex(), 16, "parent_span_id"),
            ),
            name=span.name,
            instants=(
                instant(span.start_time_unix_nano, "start_time_unix_nano"),
                instant(span.end_time_unix_nano, "end_time_unix_nano"),
            ),
            attributes=_attributes(span.attributes, WANTED),
            failed=span.status.code == _STATUS_ERROR,
        )


def _attributes(pairs: Iterable[KeyValue], wanted: frozenset[str]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs if pair.key in wanted}


def _plain(value: AnyValue) -> Any:
    form = value.WhichOneof("value")
    if form == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return None if form in (None, "kvlist_value") else getattr(value, form)
