"""What KV has ever existed, to tell a prefill from a repeated one. Torch-free; bounded memory."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Final, NamedTuple

from .prefix import common_prefix
from .sequence import Sequence


class _Context(NamedTuple):
    tokens: Seq[int]
    keys: tuple[bytes, ...]


_NOTHING: Final = _Context((), ())


class Past:
    """Remembers the keys of full blocks ever computed, newest ``limit``, and each agent's last context with KV.

    Blocks that were forgotten count as never computed, so that *re-prefilled* is a lower bound once more than
    ``limit`` different blocks have been computed.
    """

    def __init__(self, limit: int, block_tokens: int) -> None:
        self._limit = limit
        self._block_tokens = block_tokens
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._contexts: dict[str, _Context] = {}

    def blocks_computed(self, keys: Seq[bytes]) -> None:
        """Remember full blocks."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def context_computed(self, agent: str, tokens: Seq[int], keys: Seq[bytes]) -> None:
        """Remember a context of ``agent`` whose KV existed, and the keys of its full blocks, unless a longer one that starts with it is known."""
        known = self._contexts.get(agent)
        if known is None or common_prefix(known.tokens, tokens) < len(tokens):
            self._contexts[agent] = _Context(array("I", tokens), tuple(keys[: len(tokens) // self._block_tokens]))

    def forget(self, agent: str) -> None:
        """Drop ``agent``'s context."""
        self._contexts.pop(agent, None)

    def length(self, agent: str) -> int:
        """Length of ``agent``'s last context that had KV."""
        return len(self._contexts.get(agent, _NOTHING).tokens)

    def shared(self, agent: str, tokens: Seq[int]) -> int:
        """How many leading tokens that context and ``tokens`` have in common."""
        return common_prefix(self._contexts.get(agent, _NOTHING).tokens, tokens)

    def keys(self, agent: str, shared: int) -> list[bytes]:
        """The keys of that context's full blocks within its first ``shared`` tokens."""
        return list(self._contexts.get(agent, _NOTHING).keys[: shared // self._block_tokens])

    def repeated(self, sequence: Sequence, start: int, end: int) -> int:
        """How many of the positions ``start … end - 1`` of ``sequence`` had KV before."""
        had = min(
            max(common_prefix(self._contexts.get(sequence.agent, _NOTHING).tokens, sequence.tokens[:end]), start), end
        )
        size, again = self._block_tokens, had - start
        for at in range(had // size, min(-(-end // size), len(sequence.keys))):
            if sequence.keys[at] in self._keys:
                again += min((at + 1) * size, end) - max(at * size, had)
        return again
