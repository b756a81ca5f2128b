"""What the tracer needs to know, from arguments and the environment: data, decided once, without effects."""

from __future__ import annotations

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
from .spanfile import run_directory

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # what may name a run's folder
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_CAPTURE_ON: Final = frozenset({"span_only", "span_and_event"}) | _TRUE


@dataclass(frozen=True, slots=True)
class Settings:
    """How this process records.

    ``capture_content`` is ``None`` where nobody said anything: content is then off, but a tool may ask for it;
    ``False`` is a veto that no tool overrides. ``endpoint`` is the base URL of an OTLP receiver.
    """

    directory: Path
    run_id: str
    service_name: str
    capture_content: bool | None
    endpoint: str | None
    disabled: bool

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
) -> Settings:
    """Combine arguments with ``environment``; an argument wins.

    ``new_run_id`` is taken where neither names a run to join. Raises :class:`ValueError` for a ``run_id`` that cannot
    name a folder; a bad one in the environment is only reported, since a program must start in any environment.
    """
    return Settings(
        directory=Path(directory) if directory is not None else default_directory(environment),
        run_id=_run_id(run_id, environment.get(names.ENV_RUN), new_run_id),
        service_name=service_name or _service_name(environment),
        capture_content=capture_content if capture_content is not None else _capture(environment),
        endpoint=endpoint or environment.get(names.ENV_OTLP_ENDPOINT) or None,
        disabled=environment.get(names.ENV_DISABLED, "").strip().lower() in _TRUE,
    )


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
