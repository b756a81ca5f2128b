from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

import aiohttp
from aiohttp import web

from kvtrace.engine.bench.agents.client import CompletionClient, Context, TurnRecord

from .serving import asked


@given(st.lists(st.lists(st.integers(0, 200_000), max_size=5), max_size=6))
def test_context_grown_piece_by_piece_is_the_json_of_all_ids(pieces: list[list[int]]) -> None:
    context = Context()
    for piece in pieces:
        context.extend(piece)
    ids = [number for piece in pieces for number in piece]
    assert json.loads(context.json) == ids
    assert context.tokens == len(ids)


def answered(*lines: bytes) -> TurnRecord:
    """What the client makes of a stream of these lines."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"".join(lines))
        await stream.write_eof()
        return stream

    async def ask(url: str) -> TurnRecord:
        async with aiohttp.ClientSession() as session:
            record = TurnRecord("a", 0, 3, 0.0)
            return await CompletionClient(session, url, "m").complete(Context(), 2, record, {})

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    return asked(app, ask)


def test_stream_of_token_ids_and_usage_is_taken_up() -> None:
    usage = b'{"prompt_tokens": 9, "completion_tokens": 2, "kvtrace": {"queued_s": 1}}'
    record = answered(
        b'data: {"choices": [{"token_ids": [4, 5]}]}\n\n', b'data: {"choices": [], "usage": %b}\n\n' % usage
    )
    assert (record.error, record.output_ids) == (None, [4, 5])
    assert (record.prompt_tokens, record.output_tokens, record.queued_s) == (9, 2, 1.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"data: 5\n\n", "not as completions have it: 5"),
        (b'data: {"choices": [4]}\n\n', "not as completions have it"),
        (b'data: {"choices": [{"token_ids": ["a"]}]}\n\n', "not as completions have it"),
        (b'data: {"choices": [], "usage": {"prompt_tokens": "x"}}\n\n', "not as completions have it"),
        (b'data: {"choices": [], "usage": {"kvtrace": {"queued_s": "x"}}}\n\n', "not as completions have it"),
        (b'data: {"cho\n\n', "JSONDecodeError"),
        (b"data: " + b"x" * 3_000_000 + b"\n\n", "LineTooLong"),
        (b"<h1>no stream</h1>\n", "without a token"),
    ],
)
def test_whatever_a_server_streams_a_request_ends_with_an_error_and_no_fault(line: bytes, said: str) -> None:
    record = answered(line)
    assert record.error is not None
    assert said in record.error
    assert len(record.error) <= 300
