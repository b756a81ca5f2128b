"""What a model's chat template can do, found out by rendering with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from ...errors import ModelError

Message = Mapping[str, Any]

_MARK: Final = "kvtrace\u2063mark"  # no template produces or alters it
_PROBE_TOOL: Final = {
    "type": "function",
    "function": {"name": _MARK, "description": "-", "parameters": {"type": "object", "properties": {}}},
}
_USER: Final = {"role": "user", "content": "-"}
_CALL: Final = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": _MARK, "arguments": {}}}],
}
_RESULT: Final = {"role": "tool", "tool_call_id": "call00000", "name": _MARK, "content": _MARK}


class Style(StrEnum):
    """How a model writes tool calls."""

    HERMES = "hermes"  # <tool_call>{"name": …, "arguments": …}</tool_call>
    LLAMA = "llama"  # {"name": …, "parameters": …}, perhaps after <|python_tag|>


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the template of one tokenizer does.

    Attributes:
        style: how the template teaches its model to write calls; Hermes where it teaches none that we read, and
            where ``tools`` is false.
        tools: it shows tools, calls and results to the model, in a style that we read.
        system: it has a place for system messages.
        reasoning: its model thinks between ``<think>`` and ``</think>``.
    """

    style: Style
    tools: bool
    system: bool
    reasoning: bool


@lru_cache(maxsize=8)
def abilities_of(tokenizer: Any) -> Abilities:
    """Look at the tokenizer's template and try it.

    Raises:
        ModelError: the tokenizer has no chat template.
    """
    source = _source(tokenizer)
    style = _style(source)
    return Abilities(
        style=style or Style.HERMES,
        tools=style is not None and _handles_tools(tokenizer),
        system=_shows(tokenizer, [{"role": "system", "content": _MARK}, _USER]),
        reasoning="<think>" in source or "</think>" in source,
    )


def render(tokenizer: Any, messages: Sequence[Message], **options: Any) -> str:
    """The conversation as text, with the opening of the assistant's next turn.

    Args:
        tokenizer: has the template.
        messages: as the template expects them.
        options: further variables of the template, ``tools`` among them.

    Raises:
        ModelError: there is no template, or it refuses these messages.
    """
    _source(tokenizer)
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, **options
        )
    # A template is a program of strangers: it may fail in any way.
    except Exception as error:
        roles = ", ".join(str(message.get("role")) for message in messages[:20])
        raise ModelError(f"the chat template refuses messages of the roles {roles}: {error}") from error
    return text


def _source(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ModelError("the model's tokenizer has no chat template: use /v1/completions instead")
    # Some models have several, by name.
    return "\n".join(template.values()) if isinstance(template, dict) else str(template)


def _style(source: str) -> Style | None:
    """The style by its marks. ``<function=`` is a third one, which also has ``<tool_call>`` around it."""
    if "<tool_call>" in source and "<function=" not in source and "<arg_key>" not in source:
        return Style.HERMES
    if "<|python_tag|>" in source or ('"parameters"' in source and "ipython" in source):
        return Style.LLAMA
    return None


def _handles_tools(tokenizer: Any) -> bool:
    """Whether tools, calls and results all reach the model; some templates drop one of them without a word."""
    try:
        offered = render(tokenizer, [_USER], tools=[_PROBE_TOOL])
        used = render(tokenizer, [_USER, _CALL], tools=[_PROBE_TOOL])
        answered = render(tokenizer, [_USER, _CALL, _RESULT], tools=[_PROBE_TOOL])
    except ModelError:
        return False
    return 0 < offered.count(_MARK) < used.count(_MARK) < answered.count(_MARK)


def _shows(tokenizer: Any, messages: Sequence[Message]) -> bool:
    try:
        return _MARK in render(tokenizer, messages)
    except ModelError:
        return False
