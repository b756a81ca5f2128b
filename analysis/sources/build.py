"""One record from the parts every span format has: ids, name, instants, attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrace.tracer import attributes as names

from ..normal import Notes, SpanRecord
from .genai import first_token_ns, meaning, queued_intervals
from .values import BadValueError, text


def build_record(
    notes: Notes,
    line: int,
    process: int,
    ids: tuple[str, str, str],
    name: str,
    instants: tuple[int | None, int | None],
    attributes: Mapping[str, Any],
    failed: bool,
) -> SpanRecord:
    """Put a record together; ``ids`` are trace, span and parent, ``instants`` start and end.

    Raises :class:`BadValueError` where a span cannot be told from others.
    """
    trace_id, span_id, parent_span_id = ids
    if not trace_id or not span_id:
        raise BadValueError(f"span without {'spanId' if trace_id else 'traceId'}: {name[:40]!r}")
    said = meaning(name, attributes)
    start_ns, end_ns = instants
    return SpanRecord(
        source=notes.source,
        process=process,
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent_span_id or None,
        kind=said.kind,
        name=said.name,
        call_id=said.call_id,
        agent_id=said.agent_id,
        agent_label=said.agent_label,
        agent_name=said.agent_name,
        parent_agent_id=said.parent_agent_id,
        conversation_id=said.conversation_id,
        start_ns=start_ns,
        end_ns=end_ns,
        first_token_ns=first_token_ns(start_ns, attributes),
        queued_unix_ns=_queued(attributes, line, notes) if said.kind == "model" else None,
        error=text(attributes.get(names.ERROR_TYPE)) or ("error" if failed else None),
        confidence="exact",
    )


def _queued(attributes: Mapping[str, Any], line: int, notes: Notes) -> str | None:
    """Waits as text for a BIGINT[] column. A bad list costs the waits, not the model call they belong to."""
    try:
        instants = queued_intervals(attributes)
    except BadValueError as error:
        notes.skip(line, str(error))
        return None
    if not instants and names.QUEUED_INTERVALS not in attributes:
        return None
    return f"[{','.join(map(str, instants))}]"
