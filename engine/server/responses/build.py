"""An answer of the Responses API as it grows: from deltas to items, and to the events that tell of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ...sequence import Usage
from ..tools.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallDelta

Event = dict[str, Any]
Item = dict[str, Any]

_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS: Final = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponseBuilder:
    """Builds one response. Its events say everything in order; :attr:`body` is the response as of now.

    Args:
        head: the response's own fields: id, model, settings.
        new_id: makes an item's id from its prefix.
    """

    def __init__(self, head: Mapping[str, Any], new_id: Callable[[str], str]) -> None:
        self._head = dict(head)
        self._new_id = new_id
        self._status = "in_progress"
        self._output: list[Item] = []
        self._usage: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._cut = False
        self._open = False
        self._sequence = 0

    @property
    def body(self) -> dict[str, Any]:
        """The response."""
        return {
            **self._head,
            "object": "response",
            "status": self._status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if self._cut else None,
            "output": [dict(item) for item in self._output],
            "usage": self._usage,
        }

    def begin(self) -> list[Event]:
        """It was taken."""
        return [
            self._event("response.created", response=self.body),
            self._event("response.in_progress", response=self.body),
        ]

    def take(self, deltas: Iterable[Delta]) -> list[Event]:
        """More of the output."""
        events: list[Event] = []
        for delta in deltas:
            match delta:
                case ContentDelta():
                    events += self._text("message", delta.text)
                case ReasoningDelta():
                    events += self._text("reasoning", delta.text)
                case ToolCallDelta():
                    events += self._call(delta)
        return events

    def end(self, reason: str, usage: Usage) -> list[Event]:
        """It is over; ``reason`` is the choice's finish reason."""
        events = self._close()
        self._cut = reason == "length"
        self._status = "incomplete" if self._cut else "completed"
        self._usage = _usage_body(usage)
        return [*events, self._event(f"response.{self._status}", response=self.body)]

    def fail(self, message: str, code: str | None) -> list[Event]:
        """It could not be finished."""
        self._status, self._error = "failed", {"code": code or "server_error", "message": message}
        return [self._event("response.failed", response=self.body)]

    def _text(self, kind: str, text: str) -> list[Event]:
        events: list[Event] = []
        if not self._open or self._output[-1]["type"] != kind:
            events = [*self._close(), *self._open_text(kind)]
        part = self._output[-1]["content"][0]
        part["text"] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*events, self._item_event(f"response.{_PARTS[kind]}.delta", content_index=0, delta=text, **more)]

    def _open_text(self, kind: str) -> list[Event]:
        item: Item = {"type": kind, "id": self._new_id(_PREFIXES[kind]), "status": "in_progress", "content": []}
        extra: Item = {"role": "assistant"} if kind == "message" else {"summary": []}
        item |= extra
        added = self._add(item)
        part: dict[str, Any] = {"type": _PARTS[kind], "text": ""}
        if kind == "message":
            part["annotations"] = []
        item["content"].append(dict(part))
        return [added, self._item_event("response.content_part.added", content_index=0, part=part)]

    def _call(self, delta: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if delta.id is not None:
            item = {"type": "function_call", "id": self._new_id("fc"), "status": "in_progress"}
            item |= {"call_id": delta.id, "name": delta.name or "", "arguments": ""}
            events = [*self._close(), self._add(item)]
        if not delta.arguments:
            return events
        self._output[-1]["arguments"] += delta.arguments
        return [*events, self._item_event("response.function_call_arguments.delta", delta=delta.arguments)]

    def _add(self, item: Item) -> Event:
        self._output.append(item)
        self._open = True
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=_copy(item))

    def _close(self) -> list[Event]:
        """The end of the item that is open."""
        if not self._open:
            return []
        self._open = False
        item = self._output[-1]
        item["status"] = "completed"
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            events = [self._item_event("response.function_call_arguments.done", **done)]
        else:
            part = item["content"][0]
            more: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            events = [
                self._item_event(f"response.{part['type']}.done", content_index=0, text=part["text"], **more),
                self._item_event("response.content_part.done", content_index=0, part=dict(part)),
            ]
        done_item = self._event("response.output_item.done", output_index=len(self._output) - 1, item=_copy(item))
        return [*events, done_item]

    def _item_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._sequence = self._sequence, self._sequence + 1
        return {"type": kind, "sequence_number": number, **fields}


def _copy(item: Item) -> Item:
    """The item as of now: it goes on growing."""
    return item | {"content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)


def _usage_body(usage: Usage) -> dict[str, Any]:
    cached = usage.cached_device_tokens + usage.cached_host_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
