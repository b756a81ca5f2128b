"""Durations as metrics, for programs that have a MeterProvider; the API's own stand-ins make them free elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import Histogram

from . import attributes as names
from .diagnostics import internal_error
from .otlp_json import AttributeValue

# Boundaries in seconds, as the GenAI conventions advise.
_BOUNDARIES: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_SCOPE: Final = "kvtrace.tracer"


def record(histogram: str, duration_ns: int, attributes: Mapping[str, AttributeValue], error_type: str | None) -> None:
    """Record a duration, with ``error.type`` if the operation failed. Never raises."""
    try:
        labels = attributes if error_type is None else {**attributes, names.ERROR_TYPE: error_type}
        _histogram(histogram).record(duration_ns / 1e9, labels)
    except Exception as error:
        internal_error("a metric", error)


@cache
def _histogram(name: str) -> Histogram:
    """Return an instrument that wakes up when the program sets a MeterProvider."""
    what = "a tool call" if name == names.METRIC_TOOL_DURATION else "a model call"
    return metrics.get_meter(_SCOPE).create_histogram(
        name,
        unit="s",
        description=f"Duration of {what}.",
        explicit_bucket_boundaries_advisory=_BOUNDARIES,
    )
