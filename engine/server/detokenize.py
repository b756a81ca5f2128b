"""From token ids to text as they come: never half a character, and in sum what decoding all of them at once gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

Decode = Callable[[Sequence[int]], str]

_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
_SPAN: Final = 4  # tokens: the most that one character's bytes can be spread over


def decoder(tokenizer: Any, *, keep_special: bool) -> Decode:
    """How ``tokenizer`` decodes a few ids; its Rust core directly where it has one, which is ten times as fast."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return lambda tokens: str(backend.decode(tokens, skip_special_tokens=not keep_special))
    return lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=not keep_special))


class Detokenizer:
    """Text of one output.

    Decodes the new tokens together with those that were given out last: many tokenizers treat a text's first token
    specially. Text that ends in a broken character waits for the tokens that complete it.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._given = 0  # leading tokens of the window whose text was given out
        self._text = ""  # what they decode to

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that is certain with ``tokens`` added."""
        self._tokens.extend(tokens)
        held = len(self._tokens) - self._given
        for cut in range(min(held, _SPAN)):
            size = len(self._tokens) - cut
            text = self._decode(self._tokens[:size])
            if not text.endswith(_BROKEN):
                return self._give(size, text)
        if held <= _SPAN:
            return ""
        # No character is that long: what is broken stays so.
        size = len(self._tokens) - _SPAN
        return self._give(size, self._decode(self._tokens[:size]))

    def finish(self) -> str:
        """The rest, broken or not."""
        size = len(self._tokens)
        return self._give(size, self._decode(self._tokens)) if size > self._given else ""

    def _give(self, size: int, text: str) -> str:
        fresh = text[len(self._text) :]
        self._tokens, self._given = self._tokens[self._given :], size - self._given
        self._text = self._decode(self._tokens[: self._given])
        return fresh
