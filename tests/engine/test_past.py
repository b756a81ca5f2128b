from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.past import Past
from kvtrace.engine.prefix import extend_keys
from kvtrace.engine.sequence import Sampling, Sequence

SIZE = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


def sequence(tokens: list[int]) -> Sequence:
    one = Sequence(0, "a", tokens, len(tokens), Sampling(), 0)
    extend_keys(one.keys, tokens, SIZE)
    return one


@given(TOKENS, TOKENS, TOKENS, st.data())
def test_a_position_is_repeated_if_its_context_or_its_block_was_computed(
    context: list[int], other: list[int], asked: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(asked) - 1))
    end = data.draw(st.integers(start + 1, len(asked)))
    past = Past(100, SIZE)
    past.context_computed("a", context, sequence(context).keys)
    past.blocks_computed(sequence(other).keys)
    full = len(other) // SIZE * SIZE
    expected = 0
    for position in range(start, end):
        own = asked[: position + 1] == context[: position + 1]
        block = (position // SIZE + 1) * SIZE
        expected += own or (block <= min(full, len(asked)) and asked[:block] == other[:block])
    assert past.repeated(sequence(asked), start, end) == expected
