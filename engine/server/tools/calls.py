"""Reading one JSON value that asks for tools, whole or as it comes."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from .deltas import Delta, ToolCallDelta
from .scan import ValueScanner

ARGUMENT_KEYS: Final = ("arguments", "parameters")
_HEAD: Final = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_ID_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the tool, and its arguments as JSON text."""

    name: str
    arguments: str


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{secrets.token_hex(_ID_BYTES)}"


def read_calls(text: str) -> list[Call] | None:
    """The calls that a JSON object, or an array of such, asks for; ``None`` where it is something else.

    Line breaks inside strings, which strict JSON forbids and models write, are put right.
    """
    try:
        value = _DECODER.decode(text)
        calls = [_read_call(one) for one in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):  # RecursionError: brackets nested without end
        return None
    found = [call for call in calls if call is not None]
    if not found or len(found) < len(calls):
        return None
    as_written = _arguments_as_written(text) if len(found) == 1 else None
    return found if as_written is None else [replace(found[0], arguments=as_written)]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def _read_call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    # Some models repeat OpenAI's own nesting.
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name")
    if not isinstance(name, str) or not name or not _is_text(name):
        return None
    arguments: Any = next((value[key] for key in ARGUMENT_KEYS if key in value), {})
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if arguments is None:
        arguments = {}
    return Call(name, _as_json(arguments)) if isinstance(arguments, dict) else None


def _as_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if _is_text(text) else json.dumps(value)


def _is_text(text: str) -> bool:
    """Whether it can be sent: JSON can escape halves of characters that UTF-8 has no bytes for."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _arguments_as_written(text: str) -> str | None:
    """The arguments of a call in the common form, as the model wrote them, where that is strict JSON."""
    head = _HEAD.match(text)
    if head is None:
        return None
    rest = text[head.end() :]
    end = ValueScanner().end(rest)
    if end is None or rest[end:].strip() != "}":
        return None
    try:
        json.loads(rest[:end], parse_constant=_no_constant)
    except ValueError:
        return None
    return rest[:end]


class CallLedger:
    """Gives calls their index and id, and remembers which tool each id is for."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self.calls: dict[str, str] = {}
        self._new_id = new_id

    def open(self, name: str) -> ToolCallDelta:
        """The first delta of a call of the tool ``name``."""
        call_id = self._new_id()
        self.calls[call_id] = name
        return ToolCallDelta(len(self.calls) - 1, id=call_id, name=name)

    def more(self, arguments: str) -> ToolCallDelta:
        """A further piece of the newest call's arguments."""
        return ToolCallDelta(len(self.calls) - 1, arguments=arguments)

    def whole(self, calls: list[Call]) -> list[Delta]:
        """Deltas of calls that are complete."""
        deltas: list[Delta] = []
        for call in calls:
            deltas += [self.open(call.name), self.more(call.arguments)]
        return deltas


class CallReader:
    """Reads one JSON value from its opening bracket on.

    Nothing of it is given out before it is whole and proves to be a call: until then it may be plain text. With
    ``eager``, for output that a grammar holds to ``{"name": …, "arguments": {…}}``, pieces go out as they come.

    Attributes:
        complete: the value has ended; ``calls_found`` tells whether it was a call.
        raw: what was taken and not given out, for whoever must treat it as text.
    """

    def __init__(
        self, ledger: CallLedger, *, eager: bool = False, allowed: Callable[[str], bool] | None = None
    ) -> None:
        self.complete = False
        self.calls_found = False
        self._ledger = ledger
        self._eager = eager
        self._allowed = allowed
        self._value = ValueScanner()
        self._arguments: ValueScanner | None = None
        self._arguments_over = False
        self._taken: list[str] = []

    @property
    def raw(self) -> str:
        """Text that no delta has given out."""
        return "" if self.calls_found else "".join(self._taken)

    def feed(self, text: str) -> tuple[list[Delta], str]:
        """Take ``text`` up to the value's end: the deltas, and the text after the end."""
        end = self._value.end(text)
        mine, rest = (text, "") if end is None else (text[:end], text[end:])
        self._taken.append(mine)
        deltas: list[Delta] = []
        if self._arguments is not None:
            deltas = self._pass_on(mine)
        elif self._eager:
            deltas = self._open_early()
        if end is not None:
            self.complete = True
            if not self.calls_found:
                deltas = self._decide()
        return deltas, rest

    def _open_early(self) -> list[Delta]:
        text = "".join(self._taken)
        head = _HEAD.match(text)
        if head is None:
            return []
        self._arguments = ValueScanner()
        self.calls_found = True
        return [self._ledger.open(json.loads(head.group(1))), *self._pass_on(text[head.end() :])]

    def _pass_on(self, text: str) -> list[Delta]:
        if self._arguments is None or self._arguments_over or not text:
            return []
        end = self._arguments.end(text)
        self._arguments_over = end is not None
        return [self._ledger.more(text[:end])]

    def _decide(self) -> list[Delta]:
        calls = read_calls("".join(self._taken))
        if calls is None or (self._allowed is not None and not all(self._allowed(call.name) for call in calls)):
            return []
        self.calls_found = True
        return self._ledger.whole(calls)
