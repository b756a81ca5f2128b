"""From a request of the Responses API to the chat request that says the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..grammar.errors import FieldRefused
from ..schemas import ChatRequest
from .schemas import ResponsesRequest

Item = dict[str, Any]
Message = dict[str, Any]

_SYSTEM: Final = frozenset({"system", "developer"})


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """The chat request behind ``body``.

    Raises:
        FieldRefused: it asks for what is kept between requests, or for an item or a format that is not known here.
    """
    for name, value in (
        ("previous_response_id", body.previous_response_id),
        ("conversation", body.conversation),
        ("background", body.background or None),
    ):
        if value is not None:
            raise FieldRefused(f"{name} is not supported: nothing is kept here, send the whole input", name)
    chat = {
        "model": body.model,
        "messages": _messages(body),
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": _tools(body.tools),
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body.text.format if body.text is not None else None),
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "user": body.user,
        "prompt_cache_key": body.prompt_cache_key,
        "stream": body.stream,
    }
    return ChatRequest.model_validate(chat)


def _messages(body: ResponsesRequest) -> list[Message]:
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    messages = _History()
    if body.instructions:
        messages.add({"role": "system", "content": body.instructions})
    for index, item in enumerate(items):
        _add(messages, item, f"input[{index}]")
    return _one_system(messages.messages)


class _History:
    """Messages put together from items: one turn of the assistant is one message, whatever items it came in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._thought = ""

    def add(self, message: Message) -> None:
        self._thought = ""
        self.messages.append(message)

    def think(self, text: str) -> None:
        self._thought += text

    def answer(self, content: Any) -> None:
        message: Message = {"role": "assistant", "content": content}
        if self._thought:
            message["reasoning_content"] = self._thought
        self.add(message)

    def call(self, call: dict[str, Any]) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.answer(None)
        self.messages[-1].setdefault("tool_calls", []).append(call)


def _add(history: _History, item: Item, param: str) -> None:
    match item.get("type", "message"):
        case "message" if item.get("role") == "assistant":
            history.answer(item.get("content"))
        case "message":
            history.add({"role": item.get("role"), "content": item.get("content")})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            history.call({"id": item.get("call_id"), "type": "function", "function": function})
        case "function_call_output":
            history.add({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
            history.think("".join(text for text in texts if isinstance(text, str)))
        case other:
            raise FieldRefused(f"{param}: items of type {other!r} are not supported", f"{param}.type")


def _one_system(messages: Sequence[Message]) -> list[Message]:
    """The instructions at the beginning as one message: many templates take no second one."""
    first = next((at for at, one in enumerate(messages) if str(one["role"]) not in _SYSTEM), len(messages))
    if first < 2:
        return list(messages)
    return [{"role": "system", "content": _joined([one["content"] for one in messages[:first]])}, *messages[first:]]


def _joined(contents: Sequence[Any]) -> Any:
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    parts: list[Any] = []
    for content in contents:
        new = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts += new if isinstance(new, list) else [new]
        parts.append({"type": "text", "text": "\n\n"})
    return parts[:-1]


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The functions. Tools that OpenAI's servers run, and those without a schema, the model does not hear of."""
    functions = [tool for tool in tools or () if tool.get("type") == "function"]
    return [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in functions
    ] or None


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {key: form[key] for key in ("name", "schema", "strict") if key in form},
    }
