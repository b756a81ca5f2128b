"""Where hook processes record: a span file for each session, and a small file for each span that is open.

The small files are how the process that sees the end of a call learns of its start. Each is made by one process and
removed by another, so hooks that run at the same time need no lock. Nobody lives between two hooks: the evidence that a
session is alive is its next record.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from . import attributes as names
from .hook_events import HookSpan, Plan
from .otlp_json import (
    KIND_INTERNAL,
    RECORD_END,
    STATUS_ERROR,
    AttributeValue,
    encode_attributes,
    encode_text,
    record_start,
)
from .settings import RUN_ID
from .spanfile import NOTE_PREFIX, NOTE_SUFFIX, SpanFile, run_directory

SCOPE_NAME: Final = "kvtrace.hook"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_OPERATIONS: Final = {
    "turn": f"{names.OPERATION_INVOKE_AGENT} ",
    "tool": f"{names.OPERATION_EXECUTE_TOOL} ",
    "human": "",
}


def run_id_of(session: str) -> str:
    """Return the run that a session's spans belong to, where the environment names none."""
    return f"session-{_UNSAFE.sub('_', session)[:100]}"


class HookStore:
    """The records of one session in the folder of its run."""

    def __init__(self, run_directory: Path, session: str, service_name: str) -> None:
        stem = f"{NOTE_PREFIX}{_UNSAFE.sub('_', session)[:100]}"
        self._path = run_directory / f"{stem}.jsonl"
        self._stem = stem
        resource: dict[str, AttributeValue] = {
            names.SERVICE_NAME: service_name,
            names.HOST_NAME: os.uname().nodename,
            names.RUN_ID: run_directory.name,
            names.TELEMETRY_SDK_NAME: "kvtrace",
            names.TELEMETRY_SDK_LANGUAGE: "python",
        }
        self._head = record_start(resource, SCOPE_NAME, "")

    @property
    def last_ns(self) -> int:
        """When the session was last heard of, unix ns; 0 before its first record."""
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0

    def open_spans(self) -> list[HookSpan]:
        """Return the spans of the session that are open; files that cannot be read count as closed."""
        found = []
        for path in sorted(self._path.parent.glob(f"{self._stem}.{'[0-9a-f]' * 16}{NOTE_SUFFIX}")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(HookSpan(**json.loads(path.read_text(encoding="utf-8"))))
        return found

    def carry_out(self, plan: Plan) -> list[str]:
        """Write what ``plan`` says, and return the records of its tools: OTLP/JSON requests for an engine."""
        file = SpanFile(self._path)
        records = []
        for span in (*plan.closes, *plan.opens):
            # Of a wait for permission only its end tells how long it was; without one there was none to speak of.
            silent = span.kind == "human" and (span.end_ns is None or span.end_ns == span.start_ns)
            record = self._record(span)
            if not silent:
                file.append(record)
            if span.kind == "tool":
                records.append(record)
            self._note(span)
        file.close()
        return records

    def _note(self, span: HookSpan) -> None:
        path = self._path.with_name(f"{self._stem}.{span.span_id}{NOTE_SUFFIX}")
        if span.end_ns is not None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(json.dumps(asdict(span)), encoding="utf-8")

    def _record(self, span: HookSpan) -> str:
        parent = f'"parentSpanId":"{span.parent_span_id}",' if span.parent_span_id else ""
        title = _OPERATIONS[span.kind] + span.name
        end = f',"endTimeUnixNano":"{span.end_ns}"' if span.end_ns is not None else ""
        status = f',"status":{{"code":{STATUS_ERROR}}}' if span.error is not None else ""
        return (
            f'{self._head}{{"traceId":"{span.trace_id}","spanId":"{span.span_id}",{parent}"name":{encode_text(title)},'
            f'"kind":{KIND_INTERNAL},"startTimeUnixNano":"{span.start_ns}",'
            f'"attributes":[{encode_attributes(span.attributes)}]{end}{status}}}{RECORD_END}'
        )


def run_directory_of(environment: Mapping[str, str], directory: Path, session: str) -> Path:
    """Return the folder of the run that ``environment`` names, else of the session's own."""
    named = environment.get(names.ENV_RUN, "")
    return run_directory(directory, named if RUN_ID.fullmatch(named) else run_id_of(session))
