"""JSON files read value by value: lines where the file has lines, one document otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..normal import Notes


def json_values(path: Path, notes: Notes) -> Iterator[tuple[int, Any]]:
    """Yield ``(line, value)`` for each JSON value of a file, ``line`` being where it begins (1-based).

    A line that cannot be read is noted and left out; the others are not affected. Raises ``OSError``.
    """
    if _is_one_document(path):
        value = _parse(path.read_bytes(), 1, False, notes)
        if value is not None:
            yield 1, value
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                value = _parse(line, number, not line.endswith(b"\n"), notes)
                if value is not None:
                    yield number, value


def _is_one_document(path: Path) -> bool:
    """Whether JSON is spread over lines: neither of the first two lines is JSON, but the file is."""
    with path.open("rb") as file:
        first = list(islice((line for line in file if not line.isspace()), 2))
    if len(first) < 2 or first[0].lstrip()[:1] not in (b"{", b"[") or any(map(_is_json, first)):
        return False
    return _is_json(path.read_bytes())


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(text: bytes, line: int, at_end: bool, notes: Notes) -> Any:
    """Return the value, or ``None`` after noting why there is none."""
    try:
        value = json.loads(text)
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
