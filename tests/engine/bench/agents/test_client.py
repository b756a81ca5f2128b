from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.bench.agents.client import Context


@given(st.lists(st.lists(st.integers(0, 200_000), max_size=5), max_size=6))
def test_context_grown_piece_by_piece_is_the_json_of_all_ids(pieces: list[list[int]]) -> None:
    context = Context()
    for piece in pieces:
        context.extend(piece)
    ids = [number for piece in pieces for number in piece]
    assert json.loads(context.json) == ids
    assert context.tokens == len(ids)
