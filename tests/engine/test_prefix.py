from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.prefix import ROOT, block_key, common_prefix, extend_keys

contexts = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def keys_of(tokens: list[int]) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, tokens, 4)
    return keys


@given(contexts, contexts)
def test_keys_are_equal_exactly_where_prefixes_are(left: list[int], right: list[int]) -> None:
    shared = common_prefix(left, right) // 4
    assert keys_of(left)[:shared] == keys_of(right)[:shared]
    assert not set(keys_of(left)[shared:]) & set(keys_of(right)[shared:])


@given(contexts, st.integers(0, 40))
def test_extending_step_by_step_gives_the_same_keys(tokens: list[int], cut: int) -> None:
    keys = keys_of(tokens[:cut])
    extend_keys(keys, tokens, 4)
    assert keys == keys_of(tokens)


def test_key_depends_on_the_parent() -> None:
    first = block_key(ROOT, [1, 2, 3, 4])
    assert len(first) == 16
    assert block_key(first, [1, 2, 3, 4]) != first


@given(contexts, contexts)
def test_common_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    shared = common_prefix(left, right)
    assert left[:shared] == right[:shared]
    assert shared == min(len(left), len(right)) or left[shared] != right[shared]
