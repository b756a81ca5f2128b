"""Tool calls of chat requests: prompts that offer tools, grammars that hold to them, text that asks for them."""

from __future__ import annotations

from .deltas import ContentDelta, Delta, OutputParser, PlainParser, ReasoningDelta, ToolCallDelta
from .prepare import ChatPart, PreparedChat, prepare_chat

__all__ = [
    "ChatPart",
    "ContentDelta",
    "Delta",
    "OutputParser",
    "PlainParser",
    "PreparedChat",
    "ReasoningDelta",
    "ToolCallDelta",
    "prepare_chat",
]
