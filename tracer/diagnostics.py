"""What went wrong inside the tracer: counted, said once through ``logging``, never raised into the host."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields

_logger = logging.getLogger("kvtrace.tracer")


@dataclass(slots=True)
class Counts:
    """Losses and faults of this process since it started. Increments may race: the figures are for people."""

    lost_records: int = 0  # records that could not be written to the span file
    lost_signals: int = 0  # signals that the engine did not get
    sink_errors: int = 0  # signals whose sink raised
    unknown_agents: int = 0  # spans whose agent could not be named
    internal_errors: int = 0  # faults of kvtrace itself, of the user's provider or of content capture

    def reset(self) -> None:
        """Set every count to 0."""
        for field in fields(self):
            setattr(self, field.name, 0)


COUNTS = Counts()
_said: set[str] = set()


def warn_once(topic: str, message: str, *args: object) -> None:
    """Log ``message`` the first time that ``topic`` comes up in this process."""
    if topic in _said:
        return
    _said.add(topic)
    _logger.warning(message, *args)


def internal_error(where: str, error: BaseException) -> None:
    """Count a fault of ours and name its class once; its text stays out, as it may quote the user's data."""
    COUNTS.internal_errors += 1
    warn_once(
        f"internal:{where}",
        "kvtrace: %s failed with %s; the traced program goes on, this span may be incomplete. Further ones are counted.",
        where,
        type(error).__name__,
    )


def forget_warnings() -> None:
    """Let every topic be said again, as in a new process."""
    _said.clear()
