"""Reasoning kept apart: ``<think>…</think>`` before the answer."""

from __future__ import annotations

from typing import Final

from .deltas import Delta, OutputParser, ReasoningDelta
from .scan import held_back

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class ReasoningParser:
    """Gives what stands between the marks at the start of the output as reasoning, the rest to ``inner``.

    The same marks later in the output are content. White space at the borders belongs to neither side.

    Args:
        inner: parses what follows the reasoning.
        opened: the prompt ended with the opening mark, so that the output begins inside.
        keeps_special: the marks are special tokens of this model.
    """

    def __init__(self, inner: OutputParser, *, opened: bool = False, keeps_special: bool = False) -> None:
        self._inner = inner
        self.keeps_special = keeps_special or inner.keeps_special
        self._pending = ""
        self._opened = opened
        self._inside = False
        self._said = False  # some reasoning was given out
        self._over = False
        self._answered = False

    @property
    def calls(self) -> dict[str, str]:
        """As the inner parser."""
        return self._inner.calls

    @property
    def done(self) -> bool:
        """As the inner parser."""
        return self._inner.done

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain with ``text`` added."""
        if self._over:
            return self._answer(text)
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> list[Delta]:
        """What was held back."""
        deltas = [] if self._over else self._advance(final=True)
        return [*deltas, *self._inner.finish()]

    def _advance(self, *, final: bool) -> list[Delta]:
        if not self._inside:
            start = self._pending.lstrip()
            if not final and len(start) < len(OPEN) and OPEN.startswith(start):
                return []
            if not start.startswith(OPEN) and not self._opened:
                self._over = self._answered = True
                text, self._pending = self._pending, ""
                return self._inner.feed(text)
            self._inside = True
            self._pending = start.removeprefix(OPEN)
        thought, mark, after = self._pending.partition(CLOSE)
        if mark:
            self._over, self._pending = True, ""
            return [*self._think(thought.rstrip()), *self._answer(after)]
        certain = thought if final else thought[: len(thought) - held_back(thought, CLOSE)]
        certain = certain.rstrip()
        self._pending = "" if final else thought[len(certain) :]
        return self._think(certain)

    def _think(self, text: str) -> list[Delta]:
        text = text if self._said else text.lstrip()
        self._said = self._said or bool(text)
        return [ReasoningDelta(text)] if text else []

    def _answer(self, text: str) -> list[Delta]:
        """Hand ``text`` on, without the empty lines between reasoning and answer."""
        if not self._answered:
            text = text.lstrip()
            self._answered = bool(text)
        return self._inner.feed(text) if text else []
