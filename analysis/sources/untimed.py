"""Event streams of agents' command lines, which carry no instants: recognised so that the reason can be said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..normal import Notes, SpanRecord

KIND: Final = "event stream without instants"

_HEAD_BYTES: Final = 65_536
_CODEX: Final = (b'"item.completed"', b'"item.started"', b'"thread.started"')
_WHY_CODEX: Final = (
    "events of codex exec --json carry no instants, so nothing can be measured; read the session's rollout below "
    "~/.codex/sessions instead"
)
_WHY_CLAUDE: Final = (
    "stream-json of claude -p carries no instants, so nothing can be measured; read the session's transcript below "
    "~/.claude/projects instead"
)


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like ``codex exec --json`` or ``claude -p --output-format stream-json``."""
    return _is_codex(head) or (b'"session_id"' in head and b'"apiKeySource"' in head and b'"init"' in head)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield nothing, and note why. Raises ``OSError``."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    notes.skip(0, _WHY_CODEX if _is_codex(head) else _WHY_CLAUDE)
    return iter(())


def _is_codex(head: bytes) -> bool:
    return any(mark in head for mark in _CODEX)
