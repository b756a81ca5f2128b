"""Schemas of strangers, looked through before anything is compiled from them. Pure.

What a grammar may cost is bounded by the compiler itself (:mod:`.compiler`); here is what would not get that far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .errors import FieldRefused

MOST_VALUES: Final = 20_000
"""Keys and values of one schema; the largest tools of public MCP servers have some 2,000."""

MOST_DEPTH: Final = 64

MOST_PROPERTIES: Final = 1_000
"""Properties of one object: which optional ones may still come is looked at anew for every token, and from about twice
as many on the grammar's library gives up in the middle of an output."""

_ANNOTATIONS: Final = frozenset({"title", "description", "examples", "default", "deprecated", "$comment", "$schema"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES: Final = frozenset({"const", "enum"})
_JOINED: Final = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "not", "$ref", "$dynamicRef"})
_OTHERS: Final = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_OWN: Final = "x-guidance"  # how the grammar library would take orders from a schema


def checked_schema(schema: Any, param: str) -> dict[str, Any]:
    """``schema`` without its annotations, which say nothing about form, and with closed objects.

    An object that lists its properties and says nothing about others has no others here: JSON Schema would allow any,
    and a model that is free to invent some does not come to an end.

    Args:
        schema: a JSON schema as the client sent it.
        param: where it stands in the request, for the error.

    Raises:
        FieldRefused: it is no schema, points outside itself, or is larger than anybody's tool needs.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise FieldRefused(f"{param} must be a JSON schema, which is an object; it is {_kind(schema)}", param)
    for count, (depth, key, value) in enumerate(_walk(schema, 0, "")):
        if count >= MOST_VALUES:
            raise FieldRefused(f"{param} has more than {MOST_VALUES} values: send a smaller schema", param)
        if depth >= MOST_DEPTH:
            raise FieldRefused(f"{param} is nested deeper than {MOST_DEPTH} levels: send a flatter schema", param)
        if key == "properties" and isinstance(value, dict) and len(value) > MOST_PROPERTIES:
            raise FieldRefused(
                f"{param} has an object of {len(value)} properties, more than {MOST_PROPERTIES}: send a smaller schema",
                param,
            )
        if key in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
            raise FieldRefused(f"{param}: {key} {value!r} points outside the schema; only '#…' is followed", param)
    stripped: dict[str, Any] = _without_annotations(schema)
    # Schemas that are put together have each other's properties as "others".
    together = any(
        key == "allOf" and isinstance(value, list) and len(value) > 1 for _, key, value in _walk(schema, 0, "")
    )
    return stripped if together else _closed(stripped)


def _walk(value: Any, depth: int, key: str) -> Iterator[tuple[int, str, Any]]:
    # The caller stops long before the recursion goes deep.
    yield depth, key, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(inner, depth + 1, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, depth + 1, "")


def _without_annotations(schema: Any) -> Any:
    """The schema without what is only for readers; names of properties and values of enums stay what they are."""
    if isinstance(schema, list):
        return [_without_annotations(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {name: _without_annotations(inner) for name, inner in value.items()}
        elif key not in _ANNOTATIONS and key != _OWN:
            kept[key] = value if key in _VALUES else _without_annotations(value)
    return kept


def _closed(schema: Any, *, open_here: bool = False) -> Any:
    """The schema with ``additionalProperties: false`` wherever that is what its author will have meant."""
    if isinstance(schema, list):
        return [_closed(one, open_here=open_here) for one in schema]
    if not isinstance(schema, dict):
        return schema
    joined = "properties" in schema and any(key in schema for key in _JOINED)
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            closed[key] = {name: _closed(inner) for name, inner in value.items()}
        else:
            closed[key] = value if key in _VALUES else _closed(value, open_here=joined and key in _JOINED)
    if "properties" in schema and not joined and not open_here and not any(key in schema for key in _OTHERS):
        closed["additionalProperties"] = False
    return closed


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
