"""The one object that recording in this process needs, and what becomes of it at a fork."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from . import attributes as names
from .clock import SYSTEM_CLOCK, Clock
from .identity import keep_carried_only
from .ids import IdSource, RandomIds
from .otlp_json import AttributeValue, record_start
from .retention import clean
from .settings import RUN_ID, Settings, make_run_id, read_settings
from .sinks import replace_sinks
from .spanfile import SpanFile

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

SCOPE_NAME: Final = "kvtrace.tracer"
RANDOM_IDS: Final = RandomIds()
_START_ACCURACY_NS: Final = 2_000_000_000  # the clock may have been set a little since
_MOST_SCOPES: Final = 64  # libraries whose beginning of a record is kept


def package_version() -> str:
    """Return kvtrace's version, or ``0`` in a checkout that is not installed."""
    try:
        return metadata.version("kvtrace")
    except metadata.PackageNotFoundError:
        return "0"


class Runtime:
    """Settings, clock, ids, the span file and the user's OpenTelemetry provider, together."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = RANDOM_IDS,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.version = package_version()
        self._tracer_provider = tracer_provider
        self._tracer: tuple[TracerProvider, Tracer] | None = None
        self._begin_file()

    def provider(self) -> TracerProvider:
        """Return the user's provider: the one that was given, else the global one."""
        return self._tracer_provider or trace.get_tracer_provider()

    def tracer(self) -> Tracer | None:
        """Return the tracer of the provider that the user has now, or ``None`` without one."""
        provider = self.provider()
        if type(provider) is trace.ProxyTracerProvider:
            return None
        if self._tracer is None or self._tracer[0] is not provider:
            self._tracer = (provider, provider.get_tracer(SCOPE_NAME, self.version))
        return self._tracer[1]

    def record_start_of(self, scope: tuple[str, str]) -> str:
        """Return what a record of another library's (name, version) begins with; as constant as our own."""
        found = self._scope_starts.get(scope)
        if found is None:
            found = record_start(self.resource, *scope)
            if len(self._scope_starts) < _MOST_SCOPES:
                self._scope_starts[scope] = found
        return found

    def close(self) -> None:
        """Record no new spans; open ones still end in their file."""
        self.file.close()

    def continue_in_child(self) -> None:
        """Leave the parent's file to the parent and begin one of this process."""
        self.file.abandon()
        self._begin_file()

    def _begin_file(self) -> None:
        pid = os.getpid()
        start_ns = process_start_unix_ns(pid)
        self.resource: dict[str, AttributeValue] = {
            names.SERVICE_NAME: self.settings.service_name,
            names.PROCESS_PID: pid,
            names.HOST_NAME: os.uname().nodename,
            names.RUN_ID: self.settings.run_id,
            names.PROCESS_START: start_ns,
            names.TELEMETRY_SDK_NAME: "kvtrace",
            names.TELEMETRY_SDK_LANGUAGE: "python",
            names.TELEMETRY_SDK_VERSION: self.version,
        }
        self.record_start = record_start(self.resource, SCOPE_NAME, self.version)
        self._scope_starts: dict[tuple[str, str], str] = {}
        self.file = SpanFile(self.settings.run_directory / f"{pid}-{start_ns}.jsonl")


@lru_cache(maxsize=8)
def process_start_unix_ns(pid: int) -> int:
    """Return when process ``pid`` started, to 10 ms, or now where the system does not tell."""
    now = time.time_ns()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        ticks = int(stat.rpartition(")")[2].split()[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(age_ns, 0)


def remove_old_runs(settings: Settings) -> None:
    """Remove the runs that the settings' limits leave no room for, if it is time to look."""
    if not settings.disabled:
        clean(
            settings.directory,
            max_bytes=settings.max_bytes,
            max_days=settings.max_days,
            now_s=time.time(),
            keep=settings.run_directory,
            is_alive=process_is_alive,
        )


def process_is_alive(stem: str) -> bool:
    """Tell whether the process lives that wrote the span files named ``stem``, ``<pid>-<start in unix ns>``."""
    pid, _, start = stem.partition("-")
    try:
        os.kill(int(pid), 0)
        return abs(process_start_unix_ns.__wrapped__(int(pid)) - int(start)) < _START_ACCURACY_NS
    except PermissionError:  # somebody else's process, which may be the one
        return True
    except (OSError, ValueError, OverflowError):
        return False


_current: Runtime | None = None


def current() -> Runtime:
    """Return this process's runtime; the first call makes it from the environment."""
    return _current if _current is not None else _first()


def configured() -> Runtime | None:
    """Return this process's runtime if there is one already."""
    return _current


def install(runtime: Runtime | None) -> Runtime | None:
    """Put ``runtime`` in charge and return the one before it, which the caller may close or put back."""
    global _current
    before, _current = _current, runtime
    return before


def build_settings(
    *,
    directory: str | os.PathLike[str] | None = None,
    service_name: str | None = None,
    run_id: str | None = None,
    capture_content: bool | None = None,
    endpoint: str | None = None,
    engine: str | None = None,
) -> Settings:
    """Read the settings of this process from arguments and ``os.environ``; raises as :func:`read_settings` does."""
    return read_settings(
        os.environ,
        new_run_id=make_run_id(time.time_ns(), os.getpid(), f"{RANDOM_IDS.span_id():016x}"[:8]),
        directory=directory,
        service_name=service_name,
        run_id=run_id,
        capture_content=capture_content,
        endpoint=endpoint,
        engine=engine,
    )


def _first() -> Runtime:
    from .provider import export_if_asked, link_if_asked

    settings = build_settings()
    # Children join this run. Nothing else of the environment changes on a start that nobody asked for. Of two threads
    # that come here at once, the later one finds the earlier one's run.
    run_id = os.environ.setdefault(names.ENV_RUN, settings.run_id)
    settings = replace(settings, run_id=run_id) if RUN_ID.fullmatch(run_id) else settings
    # Before the runtime is there for all: a thread that starts meanwhile waits here for the export as well.
    export_if_asked(settings)
    link_if_asked(settings)
    remove_old_runs(settings)
    runtime = Runtime(settings)
    install(runtime)
    return runtime


def _after_fork_in_child() -> None:
    RANDOM_IDS.reseed()
    replace_sinks(())
    keep_carried_only()
    if _current is not None:
        _current.continue_in_child()


def _before_fork() -> None:
    # A thread would be lost in the child, and Python 3.12 warns about a fork with threads: the next span restarts it.
    if _current is not None:
        _current.file.heartbeat.stop()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
