"""What the tracer needs to know, from arguments and the environment: data, decided once, without effects."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from . import attributes as names
from .diagnostics import warn_once
from .engine_address import EngineAddress
from .retention import DEFAULT_MAX_BYTES, DEFAULT_MAX_DAYS
from .spanfile import run_directory

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # what may name a run's folder
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_CAPTURE_ON: Final = frozenset({"span_only", "span_and_event"}) | _TRUE


@dataclass(frozen=True, slots=True)
class Settings:
    """How this process records.

    ``capture_content`` is ``None`` where nobody said anything: content is then off, but a tool may ask for it;
    ``False`` is a veto that no tool overrides. ``endpoint`` is the base URL of an OTLP receiver,
    ``engine`` that of the engine which is told when tools start and end.
    Runs beyond ``max_bytes`` together, or older than ``max_days``, are removed; 0 sets no limit.
    """

    directory: Path
    run_id: str
    service_name: str
    capture_content: bool | None
    endpoint: str | None
    disabled: bool
    engine: str | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    max_days: float = DEFAULT_MAX_DAYS

    @property
    def run_directory(self) -> Path:
        """Folder that holds the span files of this run, one per process."""
        return run_directory(self.directory, self.run_id)


def read_settings(
    environment: Mapping[str, str],
    *,
    new_run_id: str,
    directory: str | os.PathLike[str] | None = None,
    service_name: str | None = None,
    run_id: str | None = None,
    capture_content: bool | None = None,
    endpoint: str | None = None,
    engine: str | None = None,
) -> Settings:
    """Combine arguments with ``environment``; an argument wins.

    ``new_run_id`` is taken where neither names a run to join. Raises :class:`ValueError` for a ``run_id`` that cannot
    name a folder or an ``engine`` that is no URL; a bad one in the environment is only reported, since a program must
    start in any environment.
    """
    return Settings(
        directory=Path(directory) if directory is not None else default_directory(environment),
        run_id=_run_id(run_id, environment.get(names.ENV_RUN), new_run_id),
        service_name=service_name or _service_name(environment),
        capture_content=capture_content if capture_content is not None else _capture(environment),
        endpoint=endpoint or environment.get(names.ENV_OTLP_ENDPOINT) or None,
        disabled=is_disabled(environment),
        engine=_engine(engine, environment.get(names.ENV_ENGINE)),
        max_bytes=int(_limit(environment, names.ENV_MAX_BYTES, DEFAULT_MAX_BYTES)),
        max_days=_limit(environment, names.ENV_MAX_DAYS, DEFAULT_MAX_DAYS),
    )


def _limit(environment: Mapping[str, str], name: str, default: float) -> float:
    value = environment.get(name, "").strip()
    if not value:
        return default
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if 0 <= limit < math.inf:
        return limit
    warn_once(name, "kvtrace: %s=%r is no number of 0 or more; %s is used.", name, value, f"{default:g}")
    return default


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Tell whether the environment says that nothing is to be recorded or signalled."""
    return environment.get(names.ENV_DISABLED, "").strip().lower() in _TRUE


def default_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the root of all span files: ``KVTRACE_DIR``, else ``kvtrace`` in the user's data folder."""
    if named := environment.get(names.ENV_DIR):
        return Path(named).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("kvtrace", appauthor=False)


def make_run_id(unix_ns: int, pid: int, suffix: str) -> str:
    """Return a run id whose text sorts by time: UTC to the millisecond, the process, a random suffix."""
    moment = datetime.fromtimestamp(unix_ns // 1_000_000 / 1000, tz=timezone.utc)  # noqa: UP017 - same in 3.11 and later
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}Z-{pid}-{suffix}"


def _run_id(argument: str | None, inherited: str | None, fresh: str) -> str:
    if argument is not None:
        if not RUN_ID.fullmatch(argument):
            raise ValueError(
                f"run_id={argument!r} cannot name a folder: use up to 128 letters, digits, '.', '_' and '-', "
                "beginning with a letter or a digit"
            )
        return argument
    if inherited is None or RUN_ID.fullmatch(inherited):
        return inherited or fresh
    warn_once(
        "run", "kvtrace: %s=%r cannot name a folder, so this process starts a run of its own.", names.ENV_RUN, inherited
    )
    return fresh


def _engine(argument: str | None, inherited: str | None) -> str | None:
    """Return the engine's URL; an empty argument turns an inherited one off."""
    if argument is not None:
        return EngineAddress.parse(argument).url if argument else None
    try:
        return EngineAddress.parse(inherited).url if inherited else None
    except ValueError as error:
        warn_once("engine-url", "kvtrace: %s: %s. Tool calls are not signalled.", names.ENV_ENGINE, error)
        return None


def _service_name(environment: Mapping[str, str]) -> str:
    if name := environment.get(names.ENV_SERVICE_NAME, "").strip():
        return name
    for pair in environment.get(names.ENV_RESOURCE_ATTRIBUTES, "").split(","):
        key, _, value = pair.partition("=")
        if key.strip() == names.SERVICE_NAME and value.strip():
            return unquote(value.strip())
    return "unknown_service"


def _capture(environment: Mapping[str, str]) -> bool | None:
    value = environment.get(names.ENV_CAPTURE_CONTENT, "").strip().lower()
    return value in _CAPTURE_ON if value else None
