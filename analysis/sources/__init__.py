"""Importers, one file a format, each turning a file into records of the normal form.

A new one needs ``recognises(head)`` and ``read(path, notes)`` and a line in :data:`IMPORTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..normal import Notes, SpanRecord
from . import flat_spans, otlp_json

_HEAD_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Importer:
    """How one format is told from others by its beginning, and read."""

    kind: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Path, Notes], Iterator[SpanRecord]]


IMPORTERS: Final = (
    Importer(otlp_json.KIND, otlp_json.recognises, otlp_json.read),
    Importer(flat_spans.KIND, flat_spans.recognises, flat_spans.read),
)
"""Every format, the stricter mark first."""


def importer_for(path: Path) -> Importer | None:
    """Importer that recognises a file by its content, or ``None``. Raises ``OSError``."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return next((importer for importer in IMPORTERS if importer.recognises(head)), None)
