"""Messages as clients send them, brought into the few forms that chat templates know. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ..grammar.errors import FieldRefused

Message = dict[str, Any]

_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
_SAME_AS: Final = {"developer": "system", "function": "tool"}


def normalised(messages: Sequence[Message]) -> list[Message]:
    """The messages with text as their content, tool calls with their arguments as objects, and four roles.

    ``content`` is never ``None``: templates put it together with other text. Arguments that are no JSON object stay
    the text they are.

    Raises:
        FieldRefused: a message is malformed, or holds what this server cannot read, such as an image.
    """
    if not messages:
        raise FieldRefused("messages is empty: send at least one", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, param: str) -> Message:
    if not isinstance(message, dict):
        raise FieldRefused(f"{param} must be an object", param)
    role = message.get("role")
    role = _SAME_AS.get(role, role) if isinstance(role, str) else role
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldRefused(f"{param}.role is {role!r}; it must be one of {', '.join(sorted(_ROLES))}", f"{param}.role")
    plain: Message = {"role": role, "content": _text(message.get("content"), f"{param}.content")}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            plain["reasoning_content"] = reasoning
        calls = message.get("tool_calls")
        if calls:
            plain["tool_calls"] = _calls(calls, f"{param}.tool_calls")
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            plain[key] = message[key]
    return plain


def _text(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldRefused(f"{param} must be text, or an array of text parts", param)
    return "".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text", part.get("refusal")) if kind in ("text", "input_text", "output_text", "refusal") else None
    if not isinstance(text, str):
        raise FieldRefused(f"{param}: only parts of type 'text' are supported, not {kind!r}", param)
    return text


def _calls(calls: Any, param: str) -> list[Message]:
    if not isinstance(calls, list):
        raise FieldRefused(f"{param} must be an array", param)
    return [_call(call, f"{param}[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, param: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FieldRefused(f"{param}.function.name is missing", f"{param}.function.name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        written, arguments = arguments, parsed_object(arguments)
    else:
        written = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
        arguments = arguments if arguments is not None else {}
    plain: Message = {
        "type": "function",
        # as_written is ours: what the model wrote, so that it becomes the same tokens again.
        "function": {"name": function["name"], "arguments": arguments, "as_written": written},
    }
    if isinstance(call.get("id"), str):
        plain["id"] = call["id"]
    return plain


def parsed_object(text: str) -> Any:
    """The JSON object that ``text`` is; ``text`` itself where it is none, and an empty object for nothing."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
