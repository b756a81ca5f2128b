"""Log probabilities in the two shapes that OpenAI's API has for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..chooser import TokenLogprobs

TokenText = Callable[[int], str]


def chat_logprobs(entries: Sequence[TokenLogprobs], text: TokenText) -> dict[str, Any]:
    """``choices[].logprobs`` of chat completions."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        word = text(token)
        # A token that is a part of a character has bytes that its text does not tell.
        spelled = None if "\N{REPLACEMENT CHARACTER}" in word else list(word.encode())
        return {"token": word, "logprob": _finite(logprob), "bytes": spelled}

    content = [
        {**one(entry.token, entry.logprob), "top_logprobs": [one(token, value) for token, value in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(entries: Sequence[TokenLogprobs], text: TokenText, offset: int = 0) -> dict[str, Any]:
    """``choices[].logprobs`` of completions; ``offset`` is where the first token's text begins."""
    words = [text(entry.token) for entry in entries]
    offsets = []
    for word in words:
        offsets.append(offset)
        offset += len(word)
    return {
        "tokens": words,
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [{text(token): _finite(value) for token, value in entry.top} for entry in entries],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    # JSON has no infinity, and a probability of zero is met where a grammar forbids what the model wants.
    return max(logprob, -9999.0)
