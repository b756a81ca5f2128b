"""OTLP/JSON, by hand and in pieces, so that what never changes is encoded once.

A record is one ``{"resourceSpans": [...]}`` document on one line. Ids are lower-case hex, 64-bit integers are
strings and enums are integers, as the OTLP specification's JSON mapping says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

Scalar = str | bool | int | float
AttributeValue = Scalar | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]

KIND_INTERNAL: Final = 1
KIND_CLIENT: Final = 3
STATUS_ERROR: Final = 2

RECORD_END: Final = "]}]}]}\n"  # closes spans, scopeSpans and resourceSpans after the span itself


def encode_text(text: str) -> str:
    """Return ``text`` as a JSON string, in ASCII; a lone surrogate, which is no text, becomes ``?``."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text)


def encode_value(value: AttributeValue) -> str:
    """Return an OTLP ``AnyValue``."""
    if isinstance(value, str):
        return f'{{"stringValue":{encode_text(value)}}}'
    if isinstance(value, bool):
        return f'{{"boolValue":{"true" if value else "false"}}}'
    if isinstance(value, int):
        return f'{{"intValue":"{int(value)}"}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{_encode_double(value)}}}'
    return f'{{"arrayValue":{{"values":[{",".join(encode_value(item) for item in value)}]}}}}'


def _encode_double(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def encode_attributes(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the items of an OTLP attribute array, without its brackets."""
    return ",".join(f'{{"key":{json.dumps(key)},"value":{encode_value(value)}}}' for key, value in attributes.items())


def record_start(resource: Mapping[str, AttributeValue], scope_name: str, scope_version: str) -> str:
    """Return a record up to the place where its span begins: constant within one file."""
    scope = f'"scope":{{"name":{json.dumps(scope_name)},"version":{json.dumps(scope_version)}}}'
    return (
        f'{{"resourceSpans":[{{"resource":{{"attributes":[{encode_attributes(resource)}]}},'
        f'"scopeSpans":[{{{scope},"spans":['
    )
