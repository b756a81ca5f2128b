"""What agents' own logs say about time: instants with or without a zone, and lengths."""

from __future__ import annotations

import re
from typing import Any, Final

from ..normal import Notes
from ..options import NS_PER_S
from .moments import moment
from .values import BadValueError

NO_ZONE: Final = "time zone not recorded (instants taken as UTC; lengths are right unless the clocks were changed)"
NO_APPROVALS: Final = "approvals not visible (they count as tool time)"
NO_FIRST_TOKEN: Final = "first token not visible"  # noqa: S105 - a sentence, not a secret
DERIVED_MODEL: Final = "model calls derived from neighbouring rows (client time around the request included)"
NO_TURNS: Final = "turns not visible (a person's time counts as overhead)"

_ZONE: Final = re.compile(r"(?:[Zz]|UTC|[+-]\d\d:?(?:\d\d)?)\s*$")
_MAX_S: Final = 2**63 / NS_PER_S


def stamp(value: Any, field: str, notes: Notes) -> int | None:
    """Nanoseconds since the Unix epoch, ``None`` where absent; a text without a zone is noted once for the file.

    Raises :class:`BadValueError` for what is no instant.
    """
    at = moment(value, field)
    if at is not None and isinstance(value, str) and not value.isdigit() and not _ZONE.search(value, 10):
        say(notes, NO_ZONE)
    return at


def loose_stamp(value: Any, notes: Notes) -> int | None:
    """The same, with ``None`` for whatever is no instant."""
    try:
        return stamp(value, "instant", notes)
    except BadValueError:
        return None


def length_ns(value: Any, per_second: int = 1) -> int | None:
    """Nanoseconds of a length counted in units, ``per_second`` of them a second; ``None`` where it makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value / per_second < _MAX_S:
        return None
    return round(value * (NS_PER_S / per_second))


def count(*values: Any) -> int | None:
    """Sum of the token counts that are there; ``None`` where there is none."""
    known = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    return sum(known) if known else None


def say(notes: Notes, *limits: str) -> None:
    """Note what a source cannot show, each once."""
    notes.cannot_show.extend(limit for limit in limits if limit not in notes.cannot_show)
