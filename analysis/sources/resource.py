"""Which process a resource describes, so that the evidence of its life can be looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvtrace.tracer import attributes as names

from ..normal import Process
from .values import BadValueError, instant, integer, text

RESOURCE_WANTED: Final = frozenset({names.PROCESS_PID, names.PROCESS_START, names.HOST_NAME, names.RUN_ID})


def process_of(values: Mapping[str, Any]) -> Process:
    """Process of a resource's attributes; what is missing or odd stays unknown."""
    try:
        pid = integer(values.get(names.PROCESS_PID), names.PROCESS_PID)
        start = instant(values.get(names.PROCESS_START), names.PROCESS_START)
    except BadValueError:
        pid = start = None
    return Process(text(values.get(names.HOST_NAME)), pid, start, touched=names.RUN_ID in values)
