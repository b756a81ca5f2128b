from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from kvtrace.engine import Completion, EngineStopped, QueueFull, Usage
from kvtrace.engine.stream import TokenStream


def _join(tokens: Sequence[int]) -> str:
    return "-".join(map(str, tokens))


def _stream() -> TokenStream:
    return TokenStream("a", _join, lambda _: None)


def test_a_stream_raises_to_every_waiter_separately() -> None:
    stream = _stream()
    stream.push([4])
    stream.fail(QueueFull("busy"))
    seen: list[BaseException] = []
    for _ in range(2):
        with pytest.raises(QueueFull, match="busy") as caught:
            stream.result(0)
        seen.append(caught.value)
    assert seen[0] is not seen[1]
    tokens = iter(stream)
    assert next(tokens) == 4
    with pytest.raises(QueueFull):
        next(tokens)


def test_every_iteration_starts_at_the_first_token() -> None:
    stream = _stream()
    stream.push([1, 2])
    stream.push([3])
    usage = Usage(prompt_tokens=4, output_tokens=3)
    stream.finish("length", usage)
    assert list(stream) == list(stream) == [1, 2, 3]
    assert stream.result(0) == Completion((1, 2, 3), "1-2-3", "length", usage)


def test_iterating_waits_for_tokens_of_another_thread() -> None:
    stream = _stream()
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    for token in range(50):
        stream.push([token])
    stream.finish("stop", Usage())
    reader.join(30)
    assert seen == list(range(50))


def test_the_first_end_counts() -> None:
    stream = _stream()
    stream.finish("stop", Usage())
    stream.fail(EngineStopped("too late"))
    assert stream.result(0).finish_reason == "stop"


def test_cancelling_asks_once_and_not_after_the_end() -> None:
    asked: list[TokenStream] = []
    stream = TokenStream("a", _join, asked.append)
    stream.cancel()
    stream.finish("cancelled", Usage())
    stream.cancel()
    assert asked == [stream]
