"""Runs exported from LangSmith: ``run_type``, ``start_time``, ``end_time`` (null while a run is open), ``dotted_order``.

A run posted at its start and patched at its end may be there twice; the ended one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from kvtrace.tracer import attributes as names

from ..normal import Notes, Process, SpanRecord
from .build import build_record
from .json_values import json_values
from .moments import moment
from .stamps import say
from .values import BadValueError, text

KIND: Final = "LangSmith runs"

_MARKS: Final = (b'"run_type"', b'"start_time"')
_OPERATIONS: Final = {"tool": names.OPERATION_EXECUTE_TOOL, "llm": names.OPERATION_CHAT}
_GRAPH_RUNS: Final = frozenset({"LangGraph", "AgentExecutor"})
_USAGE: Final = (names.GEN_AI_USAGE_INPUT_TOKENS, names.GEN_AI_USAGE_OUTPUT_TOKENS)
_THREADS: Final = ("thread_id", "session_id", "conversation_id")
_BACK_OFF: Final = "back-off between attempts not visible (inside a run of type llm)"
_ID_AT: Final = len("20240429T004912090000Z")  # each part of a dotted order is an instant and an id


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like runs of LangSmith."""
    return all(mark in head for mark in _MARKS)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable run of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    say(notes, _BACK_OFF)
    process = notes.process(Process())
    for line, value in json_values(path, notes):
        for run in _runs(value):
            try:
                yield _record(run, process, line, notes)
            except BadValueError as error:
                notes.skip(line, str(error))


def _runs(value: Any) -> Iterator[Any]:
    """Runs of a list or of an answer, with the child runs that an older export nests in them."""
    if isinstance(value, dict):
        inner = next((value[key] for key in ("runs", "data") if isinstance(value.get(key), list)), None)
        value = [value] if inner is None else inner
    todo = list(reversed(value)) if isinstance(value, list) else [value]
    while todo:
        run = todo.pop()
        yield run
        if isinstance(run, dict):
            todo += chain.from_iterable(reversed(run[key]) for key in ("child_runs",) if isinstance(run.get(key), list))


def _record(run: Any, process: int, line: int, notes: Notes) -> SpanRecord:
    if not isinstance(run, dict) or "run_type" not in run:
        raise BadValueError(f"no run: {str(run)[:40]}")
    run_id = text(run.get("id")) or ""
    trace_id, parent_id = _lineage(run, run_id)
    start_ns = moment(run.get("start_time"), "start_time")
    return build_record(
        notes,
        line,
        process,
        ids=(trace_id, run_id, parent_id),
        name=text(run.get("name")) or "",
        instants=(start_ns, moment(run.get("end_time"), "end_time")),
        attributes=_attributes(run, parent_id, start_ns),
        failed=bool(run.get("error")),
    )


def _lineage(run: Mapping[str, Any], run_id: str) -> tuple[str, str]:
    """Ids of the trace and of the parent run, from the dotted order where the fields are missing."""
    order = [part[_ID_AT:] for part in str(run.get("dotted_order") or "").split(".") if len(part) > _ID_AT]
    trace_id = text(run.get("trace_id")) or (order[0] if order else run_id)
    parent_id = text(run.get("parent_run_id")) or (order[-2] if len(order) > 1 else "")
    return trace_id, parent_id


def _attributes(run: Mapping[str, Any], parent_id: str, start_ns: int | None) -> dict[str, Any]:
    name, kind = text(run.get("name")) or "", text(run.get("run_type")) or ""
    extra = run.get("extra")
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    is_run = kind == "chain" and (not parent_id or name in _GRAPH_RUNS)
    thread = next((said for said in (text(metadata.get(key)) for key in _THREADS) if said), None)
    first_ns = moment(run.get("first_token_time"), "first_token_time") or _first_token(run)
    return {
        names.GEN_AI_OPERATION_NAME: names.OPERATION_INVOKE_AGENT if is_run else _OPERATIONS.get(kind, kind),
        names.GEN_AI_TOOL_NAME: name,
        names.GEN_AI_AGENT_NAME: name if is_run else None,
        # Runs of one thread are turns of one agent: the time between them is the person's.
        names.AGENT_ID: f"{thread}/{name}" if thread and is_run and not parent_id else None,
        names.GEN_AI_TIME_TO_FIRST_CHUNK: None if first_ns is None or start_ns is None else (first_ns - start_ns) / 1e9,
        **dict(zip(_USAGE, _usage(run, metadata), strict=True)),
    }


def _usage(run: Mapping[str, Any], metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    """Tokens as the service counts them, else as the SDK wrote them down for it to count."""
    if run.get("prompt_tokens") is not None:
        return run["prompt_tokens"], run.get("completion_tokens")
    outputs = run.get("outputs")
    for told in (outputs.get("usage_metadata") if isinstance(outputs, dict) else None, metadata.get("usage_metadata")):
        if isinstance(told, dict):
            return told.get("input_tokens"), told.get("output_tokens")
    return None, None


def _first_token(run: Mapping[str, Any]) -> int | None:
    """Instant of the first streamed token, which the SDK records as an event."""
    events = run.get("events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and event.get("name") == "new_token":
            return moment(event.get("time"), "time of new_token")
    return None
