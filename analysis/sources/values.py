"""Loose values of trace files turned into strict ones, or into a reason why not."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final

MAX_NS: Final = 2**63 - 1
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class BadValueError(ValueError):
    """A value of the wrong type or out of range; the message names the field and what stood there."""


def text(value: Any) -> str | None:
    """A non-empty string, numbers included, or ``None``.

    Control characters and lone surrogates, which no name needs and neither a terminal nor the database takes well,
    become U+FFFD.
    """
    if isinstance(value, str):
        return (value if value.isprintable() else _UNPRINTABLE.sub("\ufffd", value)) or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def integer(value: Any, field: str) -> int | None:
    """A 64-bit integer written as a number or as a string; ``None`` where absent.

    Raises :class:`BadValueError` for anything else.
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadValueError(f"{field} is no integer: {str(value)[:40]!r}") from None
    if not -MAX_NS <= number <= MAX_NS:
        raise BadValueError(f"{field} does not fit 64 bits: {str(value)[:40]!r}")
    return number


def instant(value: Any, field: str) -> int | None:
    """Nanoseconds since the Unix epoch; 0 is how OTLP writes an unknown instant, hence ``None``."""
    number = integer(value, field)
    if number is not None and number < 0:
        raise BadValueError(f"{field} is negative: {number}")
    return number or None


def identifier(value: Any, digits: int, field: str) -> str:
    """A trace id (32 digits) or span id (16) in lower-case hex, read from hex of any case (0x before it or not) or from base64.

    Returns ``""`` for an absent or all-zero id. Raises :class:`BadValueError` for what is no string.
    """
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        raise BadValueError(f"{field} is no string: {str(value)[:40]!r}")
    value = value.removeprefix("0x")
    value = value.lower() if _HEX.issuperset(value) else _from_base64(value, digits)
    return value if value.strip("0") else ""


def _from_base64(value: str, digits: int) -> str:
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    return raw.hex() if len(raw) * 2 == digits else text(value) or ""
