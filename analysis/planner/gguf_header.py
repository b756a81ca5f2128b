"""The key/value pairs at the head of a GGUF file, read without the weights and without trusting the file.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

from ..errors import ModelFileError

MAX_PAIRS: Final = 65_536
MAX_HEADER_BYTES: Final = 256 * 1024 * 1024
_MAX_TEXT_BYTES: Final = 65_536
_MAX_KEPT_ITEMS: Final = 4_096
_MAX_PASSED_ITEMS: Final = 4_000_000
_MAX_DEPTH: Final = 4
_TEXT: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf_header(path: Path) -> dict[str, Any]:
    """Keys and values of a GGUF file.

    Arrays come as lists, except those of more than 4,096 items or of texts (vocabularies), which are passed over and
    left out. Raises :class:`ModelFileError` for what is no GGUF file or breaks off, ``OSError`` where it cannot be read.
    """
    with path.open("rb") as file:
        return _Header(file, path).pairs()


class _Header:
    """A cursor over the header that refuses to go past its bounds."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._left = min(MAX_HEADER_BYTES, path.stat().st_size)
        self._items_left = _MAX_PASSED_ITEMS

    def pairs(self) -> dict[str, Any]:
        if self._take(4) != b"GGUF":
            raise self._bad("does not begin with GGUF")
        version = self._number("I")
        if version not in (2, 3):
            raise self._bad(f"is of GGUF version {version}, and 2 and 3 are known")
        self._number("Q")  # how many tensors there are
        count = self._number("Q")
        if count > MAX_PAIRS:
            raise self._bad(f"claims {count:,} keys")
        found = {}
        for _ in range(count):
            key = self._text()
            value = self._value(self._number("I"), 0)
            if value is not None:
                found[key] = value
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(depth + 1)
        return self._number(self._format(kind))

    def _array(self, depth: int) -> list[Any] | None:
        kind, count = self._number("I"), self._number("Q")
        if depth > _MAX_DEPTH:
            raise self._bad("nests arrays too deeply")
        if kind in (_TEXT, _ARRAY):
            self._items_left -= count
            if self._items_left < 0:
                raise self._bad(f"holds more than {_MAX_PASSED_ITEMS:,} texts")
            for _ in range(count):
                self._pass_text() if kind == _TEXT else self._array(depth + 1)
            return None
        width = struct.calcsize(self._format(kind))
        if count > _MAX_KEPT_ITEMS:
            self._pass(count * width)
            return None
        return list(struct.unpack(f"<{count}{self._format(kind)}", self._take(count * width)))

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._bad(f"holds a value of unknown type {kind}")
        return _SCALARS[kind]

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(kind)))[0]

    def _text(self) -> str:
        length = self._number("Q")
        if length > _MAX_TEXT_BYTES:
            self._pass(length)
            return ""
        return self._take(length).decode("utf-8", errors="replace")

    def _pass_text(self) -> None:
        self._pass(self._number("Q"))

    def _take(self, count: int) -> bytes:
        self._spend(count)
        taken = self._file.read(count)
        if len(taken) < count:
            raise self._bad("breaks off in its header")
        return taken

    def _pass(self, count: int) -> None:
        self._spend(count)
        self._file.seek(count, 1)

    def _spend(self, count: int) -> None:
        if count > self._left:
            raise self._bad("breaks off in its header, or claims more than it holds")
        self._left -= count

    def _bad(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self._path} {why}; name a whole GGUF file")
