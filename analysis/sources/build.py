"""One record from the parts every span format has: ids, name, instants, attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrace.tracer import attributes as names

from ..normal import Confidence, Notes, SpanRecord
from .dialects import in_genai_words, pending_parent
from .genai import first_token_ns, intervals, meaning, usage
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
    confidence: Confidence = "exact",
) -> SpanRecord:
    """Put a record together; ``ids`` are trace, span and parent, ``instants`` start and end.

    A pending span of Logfire becomes the start of the span it stands for, which is its parent.

    Raises :class:`BadValueError` where a span cannot be told from others.
    """
    grandparent = pending_parent(attributes)
    if grandparent is not None:
        ids, instants = (ids[0], ids[2], grandparent), (instants[0], None)
    trace_id, span_id, parent_span_id = ids
    if not trace_id or not span_id:
        raise BadValueError(f"span without {'spanId' if trace_id else 'traceId'}: {name[:40]!r}")
    attributes = in_genai_words(name, attributes)
    said = meaning(name, attributes)
    start_ns, end_ns = instants
    input_tokens, output_tokens = usage(attributes) if said.kind == "model" else (None, None)
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
        queued_unix_ns=_intervals(attributes, names.QUEUED_INTERVALS, line, notes) if said.kind == "model" else None,
        error=text(attributes.get(names.ERROR_TYPE)) or ("error" if failed else None),
        confidence="derived" if said.inferred and said.kind == "model" else confidence,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        suspended_unix_ns=_intervals(attributes, names.SUSPENDED_INTERVALS, line, notes)
        if said.kind == "tool"
        else None,
    )


def _intervals(attributes: Mapping[str, Any], key: str, line: int, notes: Notes) -> str | None:
    """Intervals as text for a BIGINT[] column. A bad list costs the intervals, not the call they belong to."""
    try:
        instants = intervals(attributes, key)
    except BadValueError as error:
        notes.skip(line, str(error))
        return None
    return None if instants is None else f"[{','.join(map(str, instants))}]"
