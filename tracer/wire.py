"""The wire format of Protocol Buffers, as far as OTLP needs it: messages read and written field by field.

By hand for two reasons. The generated classes load a protobuf runtime into the traced program, whose other packages may
insist on another version. And a reader that walks slices can pass over what it does not need, bound its work, and lose
one damaged span without its neighbours. Format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT: Final = 10  # bytes of a 64-bit number


class WireError(ValueError):
    """Bytes that are no protobuf message."""


class BudgetSpentError(ValueError):
    """More fields than the reader is willing to look at."""


@dataclass(slots=True)
class Budget:
    """How many fields may still be read: what bounds the time that a hostile body can take."""

    fields: int


def tag(number: int, wire_type: int) -> int:
    """Return the tag of a field. A field that comes with another wire type has another tag, and so is an unknown one."""
    return number << 3 | wire_type


def read_fields(data: bytes, budget: Budget) -> Iterator[tuple[int, int, bytes]]:
    """Yield ``(tag, number, content)`` of each field: ``number`` of numeric ones, ``content`` of the others.

    Numbers are as they stand on the wire, unsigned. Raises :class:`WireError` where the bytes stop making sense, and
    :class:`BudgetSpentError`.
    """
    at, end = 0, len(data)
    while at < end:
        budget.fields -= 1
        if budget.fields < 0:
            raise BudgetSpentError("too many fields")
        field, at = _read_varint(data, at)
        wire_type = field & 7
        if field >> 3 == 0 or field >= 1 << 32:
            raise WireError("a field with an impossible number")
        if wire_type == VARINT:
            number, at = _read_varint(data, at)
            yield field, number, b""
            continue
        if wire_type == LENGTH:
            size, at = _read_varint(data, at)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise WireError(f"a field of wire type {wire_type}")
        if size > end - at:
            raise WireError("a field that is longer than its message")
        content = data[at : at + size]
        at += size
        yield (field, 0, content) if wire_type == LENGTH else (field, int.from_bytes(content, "little"), b"")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise WireError("a number that does not end")


def write_varint(number: int) -> bytes:
    """Return ``number``, which must not be negative, in as few bytes as hold it."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def write_number(field: int, number: int) -> bytes:
    """Return a varint field."""
    return write_varint(field) + write_varint(number)


def write_fixed64(field: int, number: int) -> bytes:
    """Return a fixed64 field."""
    return write_varint(field) + number.to_bytes(8, "little")


def write_bytes(field: int, content: bytes) -> bytes:
    """Return a field of bytes, or of an encoded message."""
    return write_varint(field) + write_varint(len(content)) + content


def write_text(field: int, text: str) -> bytes:
    """Return a string field; a lone surrogate, which is no text, becomes ``?``."""
    return write_bytes(field, text.encode("utf-8", "replace"))
