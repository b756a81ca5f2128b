"""Finding where things begin and end in text that arrives in pieces."""

from __future__ import annotations

import re
from typing import Final

_MATTERS: Final = re.compile(r'["\\{}\[\]]')
_IN_STRING: Final = re.compile(r'["\\]')


def held_back(text: str, *marks: str) -> int:
    """Length of the longest end of ``text`` that may yet become one of ``marks``."""
    longest = max(len(mark) for mark in marks) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


class ValueScanner:
    """Finds the end of one JSON object or array by its brackets, strings left out. Does not check the JSON."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Take ``text``, which continues what was taken before; where the value ends in it, if it does.

        The value's first character must be its opening bracket.
        """
        place = 0
        if self._escaped and text:
            self._escaped = False
            place = 1
        while found := (_IN_STRING if self._string else _MATTERS).search(text, place):
            place = found.end()
            match found.group():
                case '"':
                    self._string = not self._string
                case "\\":
                    # Outside a string it is an error, which whoever reads the value will find.
                    if place == len(text):
                        self._escaped = True
                    place += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        return place
        return None
