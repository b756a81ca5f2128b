"""Instants in the spellings trace exports use: ISO 8601, or seconds, milli-, micro- or nanoseconds of Unix time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .values import MAX_NS, BadValueError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ISO: Final = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?:[.,](?P<fraction>\d+))?"
    r" ?(?P<zone>Z|z|UTC|[+-]\d\d(?::?\d\d)?)?"
)
# A count below the first bound is seconds until the year 5138; above each bound it is of the next smaller unit.
_UNITS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (2**63, 1))


def moment(value: Any, field: str) -> int | None:
    """Nanoseconds since the Unix epoch; ``None`` for an absent value, 0 included.

    A number's unit is told by its size, so that it may be in s, ms, us or ns. A text without a zone is taken for UTC,
    which is what the exports that leave it out mean. Raises :class:`BadValueError` for anything else.
    """
    if value is None or value == "":
        return None
    number = _number(value)
    nanoseconds = _of_number(number) if number is not None else _of_text(value)
    if nanoseconds is None or not 0 <= nanoseconds <= MAX_NS:
        raise BadValueError(f"{field} is no instant: {str(value)[:40]!r}")
    return nanoseconds or None


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else None


def _of_number(number: float) -> int | None:
    if not number >= 0:
        return None
    for bound, nanoseconds in _UNITS:
        if number < bound:
            return number * nanoseconds if isinstance(number, int) else round(number * nanoseconds)
    return None


def _of_text(value: Any) -> int | None:
    found = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    zone = found["zone"]
    offset = "+00:00" if zone is None or not zone.startswith(("+", "-")) else zone
    try:
        at = datetime.fromisoformat(f"{found['day']}T{found['time']}{offset}")
    except ValueError:
        return None
    fraction = int((found["fraction"] or "0").ljust(9, "0")[:9])
    return (at - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + fraction
