"""From messages and tools to the prompt's text: by the model's template, or, where it knows no tools, by us."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..grammar.errors import FieldRefused
from .choice import Tool, ToolPlan
from .messages import Message, normalised
from .template import Abilities, render

_OURS: Final = frozenset(
    {"tools", "messages", "conversation", "documents", "chat_template", "tokenize", "add_generation_prompt"}
    | {"continue_final_message", "return_dict", "return_tensors", "return_assistant_tokens_mask", "padding"}
    | {"truncation", "max_length", "tokenizer_kwargs", "tokenizer", "self"}
)


def render_chat(
    tokenizer: Any,
    abilities: Abilities,
    messages: Sequence[Message],
    plan: ToolPlan,
    options: Mapping[str, Any] | None = None,
) -> str:
    """The prompt's text, ending where the assistant's turn begins.

    The tools stand in the prompt whatever ``tool_choice`` says, so that a request without calls keeps the prefix of
    those before it.

    Args:
        tokenizer: has the chat template.
        abilities: what the template does by itself.
        messages: as the client sent them.
        plan: the tools.
        options: ``chat_template_kwargs`` of the request.

    Raises:
        FieldRefused: a message or an option is malformed.
        ModelError: the template refuses the messages.
    """
    options = _checked(options)
    plain = normalised(messages)
    if abilities.tools:
        if plan.tools:
            options["tools"] = [tool.as_sent() for tool in plan.tools]
        shown = [_for_template(message) for message in plain]
    else:
        shown = _in_text(plain, plan)
    if not abilities.system:
        shown = _without_system(shown)
    return render(tokenizer, shown, **options)


def instructions(tools: Sequence[Tool]) -> str:
    """What tells a model, in its system prompt, which tools there are and how to call them."""
    listed = "\n".join(json.dumps(tool.as_sent(), ensure_ascii=False) for tool in tools)
    return (
        "You can call functions to do what the user asks. These are the functions, one JSON signature a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, answer with a JSON object of its name and arguments between <tool_call> tags, "
        "one pair of tags for each call:\n"
        '<tool_call>\n{"name": "function name", "arguments": {"argument": "value"}}\n</tool_call>\n'
        "What it returned then comes between <tool_response> tags."
    )


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    options = dict(options or {})
    taken = sorted(_OURS & options.keys())
    if taken:
        raise FieldRefused(f"chat_template_kwargs cannot set {taken[0]!r}", "chat_template_kwargs")
    return options


def _for_template(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [{key: call["function"][key] for key in ("name", "arguments")} for call in calls]
    return message | {
        "tool_calls": [call | {"function": function} for call, function in zip(calls, functions, strict=True)]
    }


def _in_text(messages: Sequence[Message], plan: ToolPlan) -> list[Message]:
    """Tools, calls and results written into ordinary messages, in the Hermes style."""
    shown: list[Message] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            result = f"<tool_response>\n{content}\n</tool_response>"
            if shown and shown[-1].get("results"):
                shown[-1]["content"] += "\n" + result
            else:
                shown.append({"role": "user", "content": result, "results": True})
        elif role == "assistant":
            calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
            shown.append({"role": role, "content": "\n".join(([content] if content else []) + calls)})
        else:
            shown.append({"role": role, "content": content})
    shown = [{key: value for key, value in message.items() if key != "results"} for message in shown]
    if not plan.tools:
        return shown
    taught = instructions(plan.tools)
    if shown[0]["role"] == "system":
        return [{"role": "system", "content": f"{shown[0]['content']}\n\n{taught}"}, *shown[1:]]
    return [{"role": "system", "content": taught}, *shown]


def _call_text(function: Mapping[str, Any]) -> str:
    """A call as the model wrote it, so that it becomes the tokens whose KV is there already."""
    arguments = function["arguments"]
    written = function["as_written"] if isinstance(arguments, dict) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {written or "{}"}}}\n</tool_call>'


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """System messages put in front of the user's next one, for templates that have no place for them."""
    shown: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            shown.append(message | {"content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            shown.append(message)
    return [*shown, *({"role": "user", "content": text} for text in waiting)]
