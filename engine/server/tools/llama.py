"""Tool calls as Llama 3 models write them: ``{"name": …, "parameters": {…}}``, perhaps after ``<|python_tag|>``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .calls import CallLedger, CallReader
from .deltas import ContentDelta, Delta
from .scan import held_back

TAG: Final = "<|python_tag|>"
_BETWEEN: Final = ";, \t\r\n"  # what these models put between two calls


class LlamaParser:
    """Takes tool calls from the start of the output, or from after a tag, and leaves the rest as content.

    The form is bare JSON, which an answer may be as well: only calls of ``tools`` count.

    Args:
        tools: names of the request's tools.
        ledger: gives the calls their ids.
        eager: a grammar holds the output to well-formed calls, so that they may go out piece by piece.
        most_calls: after so many the output is ``done``; ``None`` for no limit.
    """

    keeps_special = True

    def __init__(
        self,
        tools: Collection[str],
        ledger: CallLedger | None = None,
        *,
        eager: bool = False,
        most_calls: int | None = None,
    ) -> None:
        self._tools = frozenset(tools)
        self._ledger = ledger or CallLedger()
        self._eager = eager
        self._most_calls = most_calls
        self._pending = ""
        self._lead = ""  # what stood before the value that is being read, in case it is no call
        self._reader: CallReader | None = None
        self._expecting = True  # a call may begin here

    @property
    def calls(self) -> dict[str, str]:
        """Tool by call id."""
        return self._ledger.calls

    @property
    def done(self) -> bool:
        """Whether the calls that were wanted are whole."""
        return self._most_calls is not None and len(self.calls) >= self._most_calls and self._reader is None

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain with ``text`` added."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> list[Delta]:
        """What was held back."""
        deltas = self._advance(final=True)
        if self._reader is not None:
            if not self._reader.calls_found:
                deltas += _content(self._lead + self._reader.raw)
            self._reader = None
        elif not self.calls:
            deltas += _content(self._lead)
        self._lead = ""
        return deltas

    def _advance(self, *, final: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while True:
            before = (self._pending, self._reader, self._expecting)
            if self._reader is not None:
                deltas += self._read()
            elif self._expecting:
                deltas += self._begin(final=final)
            else:
                deltas += self._text(final=final)
            if (self._pending, self._reader, self._expecting) == before:
                return deltas

    def _read(self) -> list[Delta]:
        assert self._reader is not None
        deltas, self._pending = self._reader.feed(self._pending)
        if self._reader.complete:
            if self._reader.calls_found:
                self._lead = ""
            else:
                deltas += self._no_call(self._lead + self._reader.raw)
            self._reader = None
        return deltas

    def _begin(self, *, final: bool) -> list[Delta]:
        """Open a reader at an opening bracket; anything else is text."""
        value = self._pending.lstrip(_BETWEEN if self.calls else None)
        self._lead += self._pending[: len(self._pending) - len(value)]
        self._pending = value
        if value.startswith(TAG):
            self._lead += TAG
            self._pending = value.removeprefix(TAG)
        elif value[:1] in ("{", "["):
            self._reader = CallReader(self._ledger, eager=self._eager, allowed=self._tools.__contains__)
        elif value and (final or not TAG.startswith(value)):
            return self._no_call(self._lead)
        return []

    def _no_call(self, text: str) -> list[Delta]:
        """Whatever stood where a call was expected is content, and so is what follows, up to a tag."""
        self._expecting, self._lead = False, ""
        return _content(text.lstrip(_BETWEEN) if self.calls else text)

    def _text(self, *, final: bool) -> list[Delta]:
        before, tag, after = self._pending.partition(TAG)
        if tag:
            self._expecting, self._lead, self._pending = True, tag, after
            return _content(before)
        keep = 0 if final else held_back(self._pending, TAG)
        certain = self._pending[: len(self._pending) - keep]
        self._pending = self._pending[len(certain) :]
        return _content(certain)


def _content(text: str) -> list[Delta]:
    return [ContentDelta(text)] if text else []
