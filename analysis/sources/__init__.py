"""Importers, one file a format, each turning a file into records of the normal form.

A new one needs ``recognises(head)`` and ``read(path, notes)`` and a line in :data:`IMPORTERS`. Where every line of a
format stands for itself, ``lines`` lets big files be read in pieces, and those that grow from where they ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ..normal import Notes, SpanRecord
from ..rows import RowWriter
from . import (
    claude_code,
    codex_rollout,
    flat_spans,
    gemini_cli,
    gemini_telemetry,
    inspect_ai,
    jaeger,
    langfuse,
    langsmith,
    openai_agents,
    opencode,
    openhands,
    otlp_json,
    otlp_lines,
    otlp_proto,
    swe_agent,
    tracelab,
    untimed,
)

_HEAD_BYTES: Final = 65_536


class LineReader(Protocol):
    """Reads a file line by line, in any number of pieces."""

    def read(self, line: bytes, number: int) -> None:
        """Read a line that is not blank, the ``number``-th of its piece; it ends without a newline where it is cut off."""
        ...

    def read_many(self, lines: bytes, number: int) -> int:
        """Read whole lines, blank ones among them, the first of them the ``number``-th; how many there were."""
        ...


@dataclass(frozen=True, slots=True)
class Importer:
    """How one format is told from others by its beginning, and read."""

    kind: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Path, Notes], Iterator[SpanRecord]]
    lines: Callable[[Notes, RowWriter], LineReader] | None = None


IMPORTERS: Final = (
    Importer(otlp_json.KIND, otlp_json.recognises, otlp_json.read, otlp_lines.LineReader),
    Importer(jaeger.KIND, jaeger.recognises, jaeger.read),
    Importer(langfuse.KIND, langfuse.recognises, langfuse.read),
    Importer(openai_agents.KIND, openai_agents.recognises, openai_agents.read),
    Importer(langsmith.KIND, langsmith.recognises, langsmith.read),
    Importer(flat_spans.KIND, flat_spans.recognises, flat_spans.read),
    Importer(claude_code.KIND, claude_code.recognises, claude_code.read),
    Importer(codex_rollout.KIND, codex_rollout.recognises, codex_rollout.read),
    Importer(gemini_cli.KIND, gemini_cli.recognises, gemini_cli.read),
    Importer(gemini_telemetry.KIND, gemini_telemetry.recognises, gemini_telemetry.read),
    Importer(opencode.KIND, opencode.recognises, opencode.read),
    Importer(inspect_ai.KIND, inspect_ai.recognises, inspect_ai.read),
    Importer(openhands.KIND, openhands.recognises, openhands.read),
    Importer(swe_agent.KIND, swe_agent.recognises, swe_agent.read),
    Importer(tracelab.KIND, tracelab.recognises, tracelab.read),
    Importer(untimed.KIND, untimed.recognises, untimed.read),
    Importer(otlp_proto.KIND, otlp_proto.recognises, otlp_proto.read),
)
"""Every format, the stricter mark first."""


def importer_for(path: Path) -> Importer | None:
    """Importer that recognises a file by its content, or ``None``. Raises ``OSError``."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return next((importer for importer in IMPORTERS if importer.recognises(head)), None)
