from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.sequence import Usage
from kvtrace.engine.server.choice import Choice
from kvtrace.engine.server.detokenize import Detokenizer, decoder
from kvtrace.engine.server.stops import StopFinder
from kvtrace.engine.server.tools.deltas import ContentDelta, PlainParser
from kvtrace.engine.stream import TokenStream

from ..conftest import VOCABULARY, tiny_tokenizer

WORDS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def _pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(WORDS, STOPS, st.lists(st.integers(0, 30), max_size=10))
@settings(max_examples=300, deadline=None)
def test_text_ends_before_the_stop_that_is_complete_first_however_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    finder, given_out = StopFinder(stops), ""
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    first = min(ends)[1] if ends else None
    for piece in _pieces(text, cuts):
        given_out += finder.feed(piece)
        # Nothing that the whole text does not have, and never a part of the stop string.
        assert text[: len(text) if first is None else first].startswith(given_out)
    given_out += finder.finish()
    assert given_out == (text if first is None else text[:first])
    assert (finder.stopped is None) == (first is None)


def test_text_is_held_back_only_while_it_may_become_a_stop() -> None:
    finder = StopFinder(["END"])
    assert [finder.feed(piece) for piece in ("a E", "N", "x", "EN", "D", "more")] == ["a ", "", "ENx", "", "", ""]
    assert finder.stopped == "END"


@given(st.text(max_size=20), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_characters_of_several_tokens_come_whole(text: str, step: int) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    detokenizer, pieces = Detokenizer(decoder(tokenizer, keep_special=False)), []
    pieces += [detokenizer.feed(tokens[start : start + step]) for start in range(0, len(tokens), step)]
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_tokens_give_what_decoding_all_of_them_gives(tokens: list[int]) -> None:
    tokenizer = tiny_tokenizer()
    detokenizer = Detokenizer(decoder(tokenizer, keep_special=False))
    text = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.finish()
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    # Bytes that are no text may be grouped into replacement characters in another way; real text may not change.
    assert text.replace("\N{REPLACEMENT CHARACTER}", "") == whole.replace("\N{REPLACEMENT CHARACTER}", "")


def test_special_tokens_are_kept_where_a_parser_needs_them(tokenizer: Any) -> None:
    tokens = tokenizer.encode("<|im_start|>hi", add_special_tokens=False)
    assert Detokenizer(decoder(tokenizer, keep_special=True)).feed(tokens) == "<|im_start|>hi"
    assert Detokenizer(decoder(tokenizer, keep_special=False)).feed(tokens) == "hi"


@pytest.mark.parametrize("stops", [["cd"], ["d", "f"], ["zz"]])
def test_an_output_ends_at_the_same_token_however_many_come_at_once(stops: list[str]) -> None:
    def read(batches: list[list[int]]) -> tuple[str, list[int], int, str | None]:
        stream = TokenStream("a", lambda tokens: bytes(tokens).decode(), lambda _: None)
        choice = Choice(0, True, stream, lambda tokens: bytes(tokens).decode(), stops, PlainParser())
        text, ids = "", []
        for batch in batches:
            stream.push(batch)
            news = choice.advance()
            text += "".join(delta.text for delta in news.deltas if isinstance(delta, ContentDelta))
            ids += news.token_ids
        stream.finish("length", Usage())
        text += "".join(delta.text for delta in choice.advance().deltas if isinstance(delta, ContentDelta))
        return text, ids, choice.tokens, choice.finish_reason

    tokens = list(b"abcdefgh")
    one_by_one = read([[token] for token in tokens])
    assert read([tokens]) == one_by_one
    assert read([tokens[:3], tokens[3:]]) == one_by_one
    text, ids, count, reason = one_by_one
    assert bytes(ids).decode() == (text if reason == "length" else text + stops[0])
    assert count == len(ids)
