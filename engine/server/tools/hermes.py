"""Tool calls as Hermes and Qwen models write them: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

from typing import Final

from .calls import CallLedger, CallReader
from .deltas import ContentDelta, Delta
from .scan import held_back

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


class HermesParser:
    """Takes tool calls out of the text around them, any number of them.

    White space next to a call belongs to neither. What stands between the marks and is no call stays content, with
    its marks. A call whose closing mark is missing or cut off at the end of the output counts.

    Args:
        ledger: gives the calls their ids.
        eager: a grammar holds the output to well-formed calls, so that they may go out piece by piece.
        most_calls: after so many the output is ``done``; ``None`` for no limit.
        keeps_special: the marks are special tokens of this model.
    """

    def __init__(
        self,
        ledger: CallLedger | None = None,
        *,
        eager: bool = False,
        most_calls: int | None = None,
        keeps_special: bool = False,
    ) -> None:
        self.keeps_special = keeps_special
        self._ledger = ledger or CallLedger()
        self._eager = eager
        self._most_calls = most_calls
        self._pending = ""  # not looked through yet, or not certain
        self._reader: CallReader | None = None
        self._lead = ""  # mark and white space before the reader's value
        self._after_call = False

    @property
    def calls(self) -> dict[str, str]:
        """Tool by call id."""
        return self._ledger.calls

    @property
    def done(self) -> bool:
        """Whether the calls that were wanted are whole."""
        whole = self._reader is None or self._reader.complete
        return self._most_calls is not None and len(self.calls) >= self._most_calls and whole

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain with ``text`` added."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> list[Delta]:
        """What was held back."""
        deltas = self._advance(final=True)
        if self._reader is not None:
            # A call that never ended: the text it is.
            lost = self._lead + self._reader.raw if not self._reader.calls_found else ""
            deltas += _content(lost)
            self._reader = None
        return deltas

    def _advance(self, *, final: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while True:
            before = (self._pending, self._reader, self._after_call)
            if self._reader is None:
                deltas += self._text(final=final)
            elif not self._reader.complete:
                found, self._pending = self._reader.feed(self._pending)
                deltas += found
            if self._reader is not None and self._reader.complete:
                deltas += self._close(final=final)
            if (self._pending, self._reader, self._after_call) == before:
                return deltas

    def _text(self, *, final: bool) -> list[Delta]:
        """Content up to the next call's opening bracket; opens a reader there."""
        if self._after_call:
            self._pending = self._pending.lstrip()
            if not self._pending:
                return []
            self._after_call = False
        before, mark, after = self._pending.partition(OPEN)
        if not mark:
            return self._certain(final=final)
        value = after.lstrip()
        if not value and not final:
            # Nothing but white space after the mark so far.
            return self._give(before.rstrip(), before[len(before.rstrip()) :] + mark + after)
        if value[:1] not in ("{", "["):
            return self._give(before + mark, after)
        self._lead = before[len(before.rstrip()) :] + mark + after[: len(after) - len(value)]
        self._reader = CallReader(self._ledger, eager=self._eager)
        return self._give(before.rstrip(), value)

    def _certain(self, *, final: bool) -> list[Delta]:
        if final:
            return self._give(self._pending, "")
        text = self._pending
        certain = text[: len(text) - held_back(text, OPEN)].rstrip()
        return self._give(certain, text[len(certain) :])

    def _give(self, text: str, pending: str) -> list[Delta]:
        self._pending = pending
        return _content(text)

    def _close(self, *, final: bool) -> list[Delta]:
        """Swallow the closing mark after a whole value, or give the value back as text."""
        assert self._reader is not None
        if not self._reader.calls_found:
            deltas = _content(self._lead + self._reader.raw)
            self._reader = None
            return deltas
        rest = self._pending.lstrip()
        if len(rest) < len(CLOSE) and CLOSE.startswith(rest):
            if not final:
                return []
            rest = ""  # the output was cut off within the mark
        self._pending = rest.removeprefix(CLOSE)
        self._reader, self._after_call = None, True
        return []


def _content(text: str) -> list[Delta]:
    return [ContentDelta(text)] if text else []
