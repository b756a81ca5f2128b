"""Conversations as token ids, by the tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2.exceptions import TemplateError

from ..errors import ModelError

Message = Mapping[str, Any]

_MARK: Final = "kvtrace\u2063mark"  # stands in for an answer; no template produces or alters it


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The ids of ``messages`` and of the opening of the assistant's next turn.

    Raises:
        ModelError: the tokenizer has no chat template, or the template refuses these messages.
    """
    return _encode(tokenizer, _render(tokenizer, messages))


def continue_chat(tokenizer: Any, tokens: Sequence[int], message: Message) -> list[int]:
    """``tokens`` with the assistant's turn ended, ``message`` appended and the next assistant turn opened.

    The result starts with exactly ``tokens``, so that KV computed for them is used again; rendering the whole
    conversation anew would not promise that. ``tokens`` may or may not end with the id that ends a turn.

    Args:
        tokenizer: has the chat template.
        tokens: a prompt of :func:`encode_chat` or of this function, then the assistant's output.
        message: a tool's result or the user's next message.

    Raises:
        ModelError: the tokenizer has no chat template, or the template refuses such a message.
    """
    before: list[Message] = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _MARK}]
    text = _render(tokenizer, [*before, message])
    _, mark, after = text.partition(_MARK)
    if not mark:
        raise ModelError(
            "the chat template drops or alters an assistant's answer, so a conversation cannot be continued"
        )
    added = _encode(tokenizer, after)
    ended = bool(tokens) and bool(added) and tokens[-1] == added[0] and added[0] in tokenizer.added_tokens_decoder
    return [*tokens, *added[1:]] if ended else [*tokens, *added]


def _render(tokenizer: Any, messages: Sequence[Message]) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("the model's tokenizer has no chat template: submit token ids instead of messages")
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
    except (TemplateError, KeyError, TypeError) as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise ModelError(f"the chat template refuses messages of the roles {roles}: {error}") from error
    return text


def _encode(tokenizer: Any, text: str) -> list[int]:
    # The template wrote the special tokens already.
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]
