"""OTLP attributes in JSON: a list of ``{"key": ..., "value": {"stringValue": ...}}``, or a plain mapping."""

from __future__ import annotations

from collections.abc import Set
from typing import Any


def attributes(pairs: Any, wanted: Set[str]) -> dict[str, Any]:
    """Plain values of the wanted attributes; whatever has another form is passed over."""
    if isinstance(pairs, dict):
        return {key: value for key, value in pairs.items() if key in wanted}
    found: dict[str, Any] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, dict):
            key = pair.get("key")
            if isinstance(key, str) and key in wanted:
                found[key] = plain(pair.get("value"))
    return found


def plain(value: Any) -> Any:
    """Value of an OTLP ``AnyValue``; 64-bit integers may stand there as strings."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((form, inner),) = value.items()
    if form in ("intValue", "int_value"):
        return _integer(inner)
    if form in ("arrayValue", "array_value"):
        items = inner.get("values") if isinstance(inner, dict) else None
        return [plain(item) for item in items] if isinstance(items, list) else []
    return inner


def _integer(value: Any) -> Any:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return value
