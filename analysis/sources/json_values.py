"""JSON files read value by value: lines where the file has lines, else one document or several behind each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from ..normal import Notes

_DECODER: Final = json.JSONDecoder()
_VALUE: Final = re.compile(r"\S")


def json_values(path: Path, notes: Notes) -> Iterator[tuple[int, Any]]:
    """Yield ``(line, value)`` for each JSON value of a file, ``line`` being where it begins (1-based).

    A line that cannot be read is noted and left out; the others are not affected. Raises ``OSError``.
    """
    if is_one_document(path):
        yield from _documents(path.read_text(encoding="utf-8-sig"), notes)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                value = parse_line(line, number, not line.endswith(b"\n"), notes)
                if value is not None:
                    yield number, value


def is_one_document(path: Path) -> bool:
    """Whether JSON is spread over lines: neither of the first two lines is JSON, but what the file begins with is."""
    with path.open("rb") as file:
        first = list(islice((line for line in file if not line.isspace()), 2))
    if len(first) < 2 or first[0].lstrip()[:1] not in (b"{", b"[") or any(map(_is_json, first)):
        return False
    try:
        _DECODER.raw_decode(path.read_text(encoding="utf-8-sig").lstrip())
    except (ValueError, RecursionError):
        return False
    return True


def _documents(text: str, notes: Notes) -> Iterator[tuple[int, Any]]:
    """Values that follow each other, as a console exporter prints them; what comes after a broken one is left out."""
    line, at = 1, 0
    while start := _VALUE.search(text, at):
        line += text.count("\n", at, start.start())
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:
            notes.skip(line, f"not JSON from here on: {error}")
            return
        yield line, value
        line, at = line + text.count("\n", start.start(), end), end


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parse_line(text: bytes, line: int, at_end: bool, notes: Notes) -> Any:
    """Return the value, or ``None`` after noting why there is none."""
    try:
        value = _loads(text)
    except UnicodeDecodeError as error:
        notes.skip(line, f"not UTF-8 (byte {error.start + 1})")
    except json.JSONDecodeError as error:
        cut_off = at_end or error.pos >= len(text.rstrip())
        notes.skip(line, "cut off inside the line" if cut_off else f"not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError) as error:
        notes.skip(line, f"not JSON: {error}")
    else:
        if value is not None:
            return value
        notes.skip(line, "null instead of an object")
    return None


def _loads(text: bytes) -> Any:
    """The value, from the quicker reader where it is as sure as the standard one, whose reasons are worded better."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json.loads(text)
