"""JSON and server-sent events as bytes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_encoder = msgspec.json.Encoder()
DONE: Final = b"data: [DONE]\n\n"


def json_bytes(value: Any) -> bytes:
    """Plain values, dataclasses and enums as JSON."""
    return _encoder.encode(value)


def event(value: Any) -> bytes:
    """One server-sent event with ``value`` as its data."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that keeps a silent stream alive; clients pass over it."""
    return b": " + text.encode() + b"\n\n"
