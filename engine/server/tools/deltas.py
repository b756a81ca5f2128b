"""What a model's text turns into: pieces of content, of reasoning and of tool calls, as the OpenAI API streams them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model wrote before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the tool call number ``index``; its first delta has ``id`` and ``name``, each piece of JSON adds up."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


class OutputParser(Protocol):
    """Turns one choice's text into deltas, however the text is cut into pieces.

    Attributes:
        keeps_special: the text must hold the special tokens too, because one of them marks a call.
        calls: ids of the calls given out so far, with their tools.
        done: the output is complete: whatever came after it would not be wanted.
    """

    @property
    def keeps_special(self) -> bool:
        """Whether the text must be decoded with its special tokens."""
        ...

    @property
    def calls(self) -> dict[str, str]:
        """Tool by call id, in the order of the calls."""
        ...

    @property
    def done(self) -> bool:
        """Whether generation may stop now."""
        ...

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain with ``text`` added."""
        ...

    def finish(self) -> list[Delta]:
        """The rest; nothing that was fed is lost."""
        ...


class PlainParser:
    """Everything is content."""

    keeps_special = False
    done = False

    def __init__(self) -> None:
        self.calls: dict[str, str] = {}

    def feed(self, text: str) -> list[Delta]:
        """``text`` as content."""
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Delta]:
        """Nothing is ever held back."""
        return []
