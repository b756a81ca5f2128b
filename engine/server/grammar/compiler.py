"""Grammars that constrain sampling, through llguidance. Its import and its tokenizer table wait until first needed."""

from __future__ import annotations

import importlib.util
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ...errors import NotInstalled
from .errors import FieldRefused
from .lark import Wanted, grammar_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from torch import Tensor

    from ...model import LoadedModel

EXTRA: Final = "kvtrace[grammar]"
MARKS: Final = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_KEPT: Final = 32  # compiled grammars; an agent sends the same tools with every request
_MOST_TEXT: Final = 2_000_000  # characters of one grammar


def compile_grammar(model: LoadedModel, wanted: Wanted, param: str) -> CompiledGrammar:
    """A grammar ready to be used with ``model``; compiled once as long as it is asked for.

    Takes some milliseconds; the first call for a model takes up to some seconds for a table of its vocabulary.

    Args:
        model: whose tokens the grammar is about.
        wanted: what the answer may be.
        param: the request's field that asks for it, for the error.

    Raises:
        FieldRefused: a schema has no grammar, or too large a one.
        NotInstalled: llguidance is missing; the message holds the command that installs it.
    """
    return _compiler(model.tokenizer, _rows(model), model.stop_ids).compile(wanted, param)


def grammar_installed() -> bool:
    """Whether the library for grammars is there."""
    return importlib.util.find_spec("llguidance") is not None


def special_marks(tokenizer: Any) -> dict[str, int]:
    """Id by text of the marks that are special tokens of this tokenizer, which ordinary text never produces."""
    known = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {mark: known[mark] for mark in MARKS if mark in known}


class CompiledGrammar:
    """A grammar that outputs can be held to; each needs a :meth:`state` of its own."""

    def __init__(self, matcher: LLMatcher, stop_ids: tuple[int, ...], rows: int) -> None:
        self._matcher = matcher
        self._stop_ids = stop_ids
        self._rows = rows

    def state(self) -> GrammarState:
        """The grammar at the beginning of an output."""
        return GrammarState(self._matcher.deep_copy(), self._stop_ids, self._rows)


class GrammarState:
    """One output under a grammar; :class:`~kvtrace.engine.grammar.Grammar` says what its methods promise.

    When the grammar is fulfilled, and also when it breaks, only the ids that end the output remain.
    """

    def __init__(self, matcher: LLMatcher, stop_ids: tuple[int, ...], rows: int) -> None:
        # The server answers before torch is loaded.
        import torch

        self.error: str | None = None
        self._matcher = matcher
        self._stop_ids = list(stop_ids)
        self._bits = torch.empty((rows + 31) // 32, dtype=torch.int32)
        self._shifts = torch.arange(32, dtype=torch.int32)

    def mask(self, row: Tensor) -> None:
        """Forbid in ``row`` what may not come next."""
        try:
            allowed = self._allowed(len(row))
        except Exception as error:  # the request fails with it, not everybody's step
            self.error = self.error or f"the grammar failed: {type(error).__name__}: {error}"
            allowed = self._only_stops(len(row))
        row.masked_fill_(~allowed.to(row.device), float("-inf"))

    def accept(self, token: int) -> None:
        """Advance by the chosen token."""
        if self.error is None and token not in self._stop_ids and not self._matcher.consume_token(token):
            self.error = f"the grammar does not take token {token}: {self._matcher.get_error()}"

    def _allowed(self, rows: int) -> Tensor:
        if self.error is not None or self._matcher.is_stopped():
            self._note_failure()
            return self._only_stops(rows)
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.nbytes)
        if self._matcher.is_error():
            self._note_failure()
            return self._only_stops(rows)
        allowed = ((self._bits.unsqueeze(1) >> self._shifts) & 1).bool().flatten()[:rows]
        if len(allowed) < rows:
            allowed = allowed.new_zeros(rows).index_fill_(0, allowed.nonzero().flatten(), True)
        return allowed

    def _note_failure(self) -> None:
        if self._matcher.is_error():
            self.error = self.error or f"the grammar cannot go on: {self._matcher.get_error()}"

    def _only_stops(self, rows: int) -> Tensor:
        allowed = self._shifts.new_zeros(rows).bool()
        allowed[self._stop_ids] = True
        return allowed


class _Compiler:
    """Compiles for one tokenizer and remembers the newest grammars. Any thread may call it."""

    def __init__(self, tokenizer: Any, rows: int, stop_ids: tuple[int, ...]) -> None:
        self._table = _tokenizer_table(tokenizer, rows, stop_ids)
        self._special = special_marks(tokenizer)
        self._rows = rows
        self._stop_ids = stop_ids
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, wanted: Wanted, param: str) -> CompiledGrammar:
        text = grammar_of(wanted, self._special)
        with self._lock:
            known = self._kept.get(text)
            if known is not None:
                self._kept.move_to_end(text)
                return known
        compiled = self._compile(text, param)
        with self._lock:
            self._kept[text] = compiled
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return compiled

    def _compile(self, text: str, param: str) -> CompiledGrammar:
        from llguidance import LLMatcher

        if len(text) > _MOST_TEXT:
            raise FieldRefused(f"{param}: {len(text)} characters of schemas; {_MOST_TEXT} are supported", param)
        grammar = LLMatcher.grammar_from_lark(text)
        matcher = LLMatcher(self._table, grammar, log_level=0, limits=_limits())
        # Some grammars compile and then have too many ways to begin.
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise FieldRefused(f"{param} cannot be held to: {_reason(probe.get_error())}", param)
        return CompiledGrammar(matcher, self._stop_ids, self._rows)


@lru_cache(maxsize=4)
def _compiler(tokenizer: Any, rows: int, stop_ids: tuple[int, ...]) -> _Compiler:
    return _Compiler(tokenizer, rows, stop_ids)


def _tokenizer_table(tokenizer: Any, rows: int, stop_ids: tuple[int, ...]) -> LLTokenizer:
    try:
        from llguidance.hf import from_tokenizer
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"output held to a schema (response_format, tool_choice required or a named tool, strict tools) needs "
            f"{error.name}; install it with: pip install '{EXTRA}'"
        ) from error
    if not stop_ids:
        raise FieldRefused("this model has no token that ends an answer, so that no grammar could end one")
    try:
        return from_tokenizer(tokenizer, n_vocab=rows, eos_token=list(stop_ids))
    except ValueError as error:
        raise FieldRefused(f"this model's tokenizer cannot be used with a grammar: {error}") from error


def _limits() -> LLParserLimits:
    """What one schema may cost: under half a second to compile, about 60 ms for one token at the very most."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_grammar_size=100_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def _rows(model: LoadedModel) -> int:
    return int(model.model.get_input_embeddings().num_embeddings)


def _reason(error: str) -> str:
    """The library's message without the grammar that it quotes."""
    first = error.splitlines()[0] if error else "unknown reason"
    return first.removesuffix(" <non-verbose/>").rpartition("failed to compile JSON schema: ")[2]
