"""One request of an agent over the OpenAI completions API, with token ids in and out, and its instants."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError  # a line too long for its buffer is no ClientError

ANSWER_TIMEOUT_S: Final = 600.0  # of silence; a server that queues for longer than this serves nobody
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(slots=True)
class TurnRecord:
    """What came of one request. Instants are seconds of the monotonic clock; ``None``: never happened or not told.

    ``cached_tokens`` of the prompt came from a cache, of them ``host_tokens`` from host memory;
    ``reprefilled_tokens`` had KV before and were computed again. ``error`` says why a request failed.
    """

    agent: str
    turn: int
    prompt_tokens: int
    sent_s: float
    tool_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float | None = None
    output_ids: list[int] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int | None = None
    host_tokens: int | None = None
    reprefilled_tokens: int | None = None
    queued_s: float | None = None
    restoring_s: float | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between two tokens of the output."""
        if self.first_token_s is None or self.ended_s is None or self.output_tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) / (self.output_tokens - 1)


class Context:
    """An agent's token ids as the JSON text a request needs, grown piece by piece.

    A context of thousands of ids is sent again at every turn; written out anew each time it would cost the client, which
    all agents share, a millisecond a turn that then shows in everybody's first token.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        self.tokens = 0

    def extend(self, ids: Iterable[int]) -> None:
        """Add ``ids`` at the end."""
        words = [str(number) for number in ids]
        if words:
            self._text += ("," if self.tokens else "").encode() + ",".join(words).encode()
            self.tokens += len(words)

    @property
    def json(self) -> bytes:
        """All ids as a JSON array."""
        return b"[%b]" % bytes(self._text)


class _Malformed(Exception):
    """A server that answers in no shape that is known here."""


class CompletionClient:
    """Sends prompts to ``/v1/completions`` of one server and model, streamed.

    Args:
        session: open aiohttp session; every agent's requests share its connections.
        url: base URL, without ``/v1``.
        model: model id as the server names it.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._address = f"{url.rstrip('/')}/v1/completions"
        self._model = model

    async def complete(
        self, prompt: Context, tokens: int, record: TurnRecord, headers: Mapping[str, str]
    ) -> TurnRecord:
        """Generate exactly ``tokens`` after ``prompt`` and fill in ``record``; a failure becomes its ``error``."""
        body = self._body(prompt, tokens)
        record.sent_s = time.monotonic()
        try:
            async with self._session.post(self._address, data=body, headers={**headers, **_JSON}) as response:
                if response.status != 200:
                    record.error = f"HTTP {response.status}: {_sentence(await response.text())[:300]}"
                    return record
                async for event in _events(response):
                    _take(event, record)
        except _Malformed as error:
            record.error = str(error)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            record.error = f"{type(error).__name__}: {error}"[:300]
        if record.error is None and record.first_token_s is None:
            record.error = "the stream ended without a token"
        return record

    def _body(self, prompt: Context, tokens: int) -> bytes:
        options = {
            "model": self._model,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        return b'%b, "prompt": %b}' % (json.dumps(options)[:-1].encode(), prompt.json)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The JSON events of a server-sent stream; comments and the final ``[DONE]`` are passed over."""
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data != b"[DONE]":
                yield json.loads(data)


def _take(event: Any, record: TurnRecord) -> None:
    try:
        _take_known(event, record)
    except (AttributeError, KeyError, TypeError) as error:
        raise _Malformed(f"an event of the stream is not as completions have it: {str(event)[:100]}") from error


def _take_known(event: dict[str, Any], record: TurnRecord) -> None:
    if "error" in event:
        record.error = str(event["error"])[:200]
    for choice in event.get("choices") or ():
        ids = choice.get("token_ids") or ()
        if ids or choice.get("text"):
            now = time.monotonic()
            record.first_token_s = record.first_token_s or now
            record.ended_s = now
            record.output_ids.extend(map(operator.index, ids))
    if usage := event.get("usage"):
        _take_usage(usage, record)


def _take_usage(usage: dict[str, Any], record: TurnRecord) -> None:
    record.prompt_tokens = _whole(usage.get("prompt_tokens")) or record.prompt_tokens
    record.output_tokens = _whole(usage.get("completion_tokens")) or 0
    details = usage.get("prompt_tokens_details") or {}
    record.cached_tokens = _whole(details.get("cached_tokens"))
    ours = usage.get("kvtrace") or {}
    record.host_tokens = _whole(ours.get("cached_host_tokens"))
    record.reprefilled_tokens = _whole(ours.get("reprefilled_tokens"))
    record.queued_s = _real(ours.get("queued_s"))
    record.restoring_s = _real(ours.get("restoring_s"))


def _whole(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _real(value: Any) -> float | None:
    return None if value is None else value + 0.0


def _sentence(body: str) -> str:
    """What a server says is wrong, in OpenAI's shape or any other, on one line."""
    try:
        said = str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        said = body
    return " ".join(said.split())
