"""The body of an OTLP request: what a client may send, opened within limits, and how it is answered."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from . import otlp_proto as proto
from .wire import write_bytes, write_number, write_text

PATHS: Final = ("/v1/traces", "/v1/logs")
_GZIP: Final = 16 + zlib.MAX_WBITS
_RPC_INVALID_ARGUMENT: Final = 3  # google.rpc.Code


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may cost. A batch of 512 ordinary spans is about 0.5 MB and 15,000 fields."""

    body_bytes: int = 4 << 20  # as sent
    inflated_bytes: int = 16 << 20  # protobuf after gzip
    json_bytes: int = 4 << 20  # after gzip; less, as the objects made of it take 30 times its size
    fields: int = 400_000  # protobuf fields looked at, 1 µs each
    remembered: int = 8192  # spans, for deduplication


class BadRequest(Exception):
    """A request that cannot be used at all; nothing came of it. ``status`` is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def response(self, content_type: str) -> tuple[bytes, str]:
        """Return body and content type of the answer, a ``google.rpc.Status`` in the encoding of the request."""
        if media_type(content_type) == Encoding.JSON.value:
            status = {"code": _RPC_INVALID_ARGUMENT, "message": self.message}
            return json.dumps(status).encode(), Encoding.JSON.value
        body = write_number(proto.RPC_CODE, _RPC_INVALID_ARGUMENT) + write_text(proto.RPC_MESSAGE, self.message)
        return body, Encoding.PROTOBUF.value


class Encoding(Enum):
    """The encodings of OTLP/HTTP, by content type."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def open_body(body: bytes, content_type: str, content_encoding: str | None, limits: Limits) -> tuple[bytes, Encoding]:
    """Return the inflated body and its encoding; raises :class:`BadRequest`."""
    try:
        encoding = Encoding(media_type(content_type))
    except ValueError:
        known = " or ".join(one.value for one in Encoding)
        raise BadRequest(415, f"content type {content_type[:80]!r} is not OTLP: send {known}") from None
    if len(body) > limits.body_bytes:
        raise BadRequest(413, f"the body has {len(body)} bytes, more than {limits.body_bytes}: send smaller batches")
    most = limits.json_bytes if encoding is Encoding.JSON else limits.inflated_bytes
    compression = (content_encoding or "").strip().lower()
    if compression == "gzip":
        return _inflate(body, most), encoding
    if compression not in ("", "identity"):
        raise BadRequest(415, f"content encoding {compression[:80]!r} is not known: send gzip or none")
    if len(body) > most:
        raise BadRequest(413, f"the body has {len(body)} bytes, more than {most}: send smaller batches")
    return body, encoding


def _inflate(body: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj(_GZIP)
    try:
        # One byte more than allowed tells a bomb from a body that just fits, and no more is ever inflated.
        inflated = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise BadRequest(400, f"the body is no gzip: {error}") from None
    if len(inflated) > most:
        raise BadRequest(413, f"the body inflates to more than {most} bytes: send smaller batches")
    if not inflater.eof or inflater.unused_data:
        raise BadRequest(400, "the gzip body is cut off, or something follows it")
    return inflated


def accepted(encoding: Encoding, path: str, rejected: int, why: str) -> bytes:
    """Return the body of a success, which tells how many records were passed over, and why the first one was."""
    message = f"{rejected} could not be read, the first because of {why}" if rejected else ""
    if encoding is Encoding.JSON:
        key = "rejectedLogRecords" if path == "/v1/logs" else "rejectedSpans"
        answer: dict[str, Any] = {"partialSuccess": {key: str(rejected), "errorMessage": message}} if rejected else {}
        return json.dumps(answer).encode()
    if not rejected:
        return b""
    partial = write_number(proto.PARTIAL_REJECTED, rejected) + write_text(proto.PARTIAL_MESSAGE, message)
    return write_bytes(proto.RESPONSE_PARTIAL, partial)
