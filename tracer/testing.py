"""Fakes for tests of traced programs: a clock that stands still, ids that count, and a recording set apart."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.trace import TracerProvider

from . import attributes as names
from .clock import SYSTEM_CLOCK, Clock
from .identity import replace_live
from .ids import IdSource
from .runtime import Runtime, install
from .settings import read_settings
from .signals import Signal
from .sinks import replace_sinks


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, unix_ns: int = 1_700_000_000_000_000_000) -> None:
        self._unix_ns = unix_ns

    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._unix_ns

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``, which must not be negative."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: an instant never runs backwards")
        self._unix_ns += round(seconds * 1e9)


class SequentialIds:
    """Ids 1, 2, 3, …, counted apart for traces and spans."""

    def __init__(self) -> None:
        self._traces = 0
        self._spans = 0

    def trace_id(self) -> int:
        """Return the next trace id."""
        self._traces += 1
        return self._traces

    def span_id(self) -> int:
        """Return the next span id."""
        self._spans += 1
        return self._spans


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a span file; ``end_unix_ns`` is ``None`` in a start record. ``kind`` and ``status`` are OTLP's."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: int
    start_unix_ns: int
    end_unix_ns: int | None
    attributes: dict[str, Any]
    status: int
    resource: dict[str, Any]


@dataclass(slots=True)
class Captured:
    """What a :func:`capture` block recorded, read anew from its files at each access."""

    directory: Path
    signals: list[Signal] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """Every line, in the order of writing within each process."""
        return read_records(self.directory)

    @property
    def spans(self) -> list[Record]:
        """Every span that ended, in the order of ends within each process."""
        return [record for record in self.records if record.end_unix_ns is not None]


@contextmanager
def capture(
    *,
    clock: Clock = SYSTEM_CLOCK,
    ids: IdSource | None = None,
    capture_content: bool | None = None,
    tracer_provider: TracerProvider | None = None,
    disabled: bool = False,
) -> Iterator[Captured]:
    """Record a block apart from everything else: own folder, run, signals and live agents; all as before after it.

    ``ids`` count from 1 by default. Child processes join the recording. The program's provider is used as always
    unless ``tracer_provider`` is given.
    """
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as folder:
        captured = Captured(Path(folder))
        environment = {names.ENV_DIR: folder, names.ENV_RUN: "captured", names.ENV_DISABLED: "1" if disabled else "0"}
        settings = read_settings(environment, new_run_id="captured", capture_content=capture_content)
        runtime = Runtime(settings, clock=clock, ids=ids or SequentialIds(), tracer_provider=tracer_provider)
        outer_sinks, outer_live = replace_sinks((captured.signals.append,)), replace_live({})
        outer_environment = {key: os.environ.get(key) for key in environment}
        outer_runtime = install(runtime)
        os.environ.update(environment)
        try:
            yield captured
        finally:
            _restore(outer_environment)
            install(outer_runtime)
            runtime.close()
            replace_sinks(outer_sinks)
            replace_live(outer_live)


def read_records(directory: Path) -> list[Record]:
    """Read every span file below ``directory``, skipping lines that are torn."""
    records: list[Record] = []
    for path in sorted(directory.rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                document = json.loads(line)
            except ValueError:
                continue
            records += _records_of(document)
    return records


def _records_of(document: dict[str, Any]) -> Iterator[Record]:
    for group in document["resourceSpans"]:
        resource = _attributes(group["resource"]["attributes"])
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                yield _record(span, resource)


def _record(span: dict[str, Any], resource: dict[str, Any]) -> Record:
    end = span.get("endTimeUnixNano")
    return Record(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId"),
        name=span["name"],
        kind=span["kind"],
        start_unix_ns=int(span["startTimeUnixNano"]),
        end_unix_ns=None if end is None else int(end),
        attributes=_attributes(span["attributes"]),
        status=span.get("status", {}).get("code", 0),
        resource=resource,
    )


def _attributes(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["key"]: _value(item["value"]) for item in items}


def _value(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [_value(item) for item in content["values"]]
    if kind == "doubleValue":
        return float(content)
    return int(content) if kind == "intValue" else content


def _restore(environment: dict[str, str | None]) -> None:
    for key, value in environment.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
