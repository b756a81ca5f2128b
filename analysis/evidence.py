"""How long a span that never ended can be shown to have lasted: whether its process lives, and when it last did.

The effect (looking at the host) is behind :class:`Host`, so that tests decide what is alive.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, Protocol

from kvtrace.tracer.clock import SYSTEM_CLOCK, Clock

from .normal import Process
from .options import NS_PER_S

# The tracer reads the clock after the process began, and /proc counts in ticks of 10 ms.
_START_SLACK_NS: Final = 2 * NS_PER_S


class Host(Protocol):
    """The machine the report runs on."""

    def unix_ns(self) -> int:
        """Now, nanoseconds since the Unix epoch."""
        ...

    def is_running(self, process: Process) -> bool:
        """Whether that very process, not a later one with its id, still runs on this host."""
        ...


class ThisHost:
    """Looks into ``/proc``; where there is none, nothing counts as running."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._proc = proc

    def unix_ns(self) -> int:
        """Now, nanoseconds since the Unix epoch."""
        return self._clock.unix_ns()

    def is_running(self, process: Process) -> bool:
        """Whether that very process, not a later one with its id, still runs on this host."""
        if process.pid is None or process.start_ns is None or process.host != socket.gethostname():
            return False
        began_ns = self._began_ns(process.pid)
        return began_ns is not None and began_ns <= process.start_ns + _START_SLACK_NS

    def _began_ns(self, pid: int) -> int | None:
        """Start of a living process in Unix nanoseconds; a zombie is dead."""
        try:
            stat = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            uptime_s = float((self._proc / "uptime").read_text(encoding="ascii").split()[0])
            # The command name, in parentheses, may itself hold spaces and parentheses.
            fields = stat[stat.rindex(")") + 2 :].split()
            state, start_ticks = fields[0], int(fields[19])
        except (OSError, ValueError, IndexError):
            return None
        if state in "ZX":
            return None
        age_s = uptime_s - start_ticks / os.sysconf("SC_CLK_TCK")
        return self._clock.unix_ns() - round(age_s * NS_PER_S)


def last_sign_ns(process: Process, file_mtime_ns: int, host: Host) -> tuple[int | None, bool]:
    """Last instant a process is known to have lived at beside what its spans say, and whether it still does."""
    if host.is_running(process):
        return host.unix_ns(), True
    return (file_mtime_ns if process.touched else None), False
