"""A table of the Collector's in, measured times out."""

from __future__ import annotations

from pathlib import Path

from ..errors import MissingExtraError
from ..loading import LoadedFile
from ..normal import Notes
from ..store import Store
from ..timeline import Measured
from .server import Server
from .target import parse_target

_NEVER_ENDED = "calls that never ended (a Collector is sent none, so b is no range)"


def read_table(source: str, round_trip_ns: int, copy_to: Store | None = None) -> tuple[Measured, LoadedFile]:
    """Measure the spans of a table, and say what it cannot show; ``copy_to`` is given what pictures are drawn from.

    Raises :class:`MissingExtraError` and what :class:`Server` does.
    """
    try:
        from .copying import copy_rows
        from .measure import measure_table
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} is not installed; pip install 'kvtrace[clickhouse]'") from error
    target = parse_target(source)
    with Server(target) as server:
        measured = measure_table(server, target.quoted, round_trip_ns)
        if copy_to is not None:
            copy_rows(server, copy_to)
    return measured, LoadedFile(Notes(Path(str(target)), 0, cannot_show=[_NEVER_ENDED]), "ClickHouse")
