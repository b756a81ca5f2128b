"""One request for completions in the event loop: submit its choices, wait for news, account for the end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from starlette.responses import Response

from ..errors import EngineError, ModelError, NotInstalled, QueueFull, RequestRefused
from ..grammar import Grammar
from ..records import AgentState
from ..sequence import Sampling, Usage
from .choice import Choice, News
from .detokenize import decoder
from .errors import CLIENT_GONE, ApiError, api_error
from .parameters import for_choice
from .records import RequestRecord
from .service import Service
from .sse import SILENCE_S, ClientGone, EventStream, unless_gone
from .tools.deltas import OutputParser

_CUT: Final = "the server stopped before the answer was complete: send the request again when it is back"


@dataclass(frozen=True, slots=True)
class Order:
    """One prompt and how its ``n`` choices are made; makers are called once a choice."""

    tokens: Sequence[int]
    sampling: Sampling
    n: int
    stops: Sequence[str]
    new_parser: Callable[[], OutputParser]
    new_grammar: Callable[[], Grammar | None]


class Job:
    """The choices of one request. :meth:`end` it in any case: that cancels what still runs and records what became of it.

    ``token_ids`` makes each token news, even while its text is held back. Everything but the engine's wake-ups happens
    in the event loop.
    """

    def __init__(
        self, service: Service, record: RequestRecord, *, salt: str | None = None, token_ids: bool = False
    ) -> None:
        self.choices: list[Choice] = []
        self.record = record
        self.token_ids = token_ids
        self._service = service
        self._salt = salt
        self._moved = asyncio.Event()
        self._error: BaseException | None = None
        self._ended = False

    async def submit(self, orders: Sequence[Order], patience_s: float | None = None) -> None:
        """Hand everything to the engine and wait until it was taken, but no longer than ``patience_s``.

        Only where the queue is full by all appearances the engine's word is awaited in any case: between two steps it has
        time for it, and a stream that had begun could not be refused with a status any more.

        Raises:
            EngineError: it was not.
        """
        waker = self._service.waker
        self._service.open.add(self.record.response_id)
        for order in orders:
            for index in range(order.n):
                self._start(order, index)
        for choice in self.choices:
            choice.watch(lambda: waker.wake(self._moved))
        until = time.monotonic() + (math.inf if patience_s is None else patience_s)
        while not all(list(map(Choice.accepted, self.choices))):
            if time.monotonic() >= until and not self._service.crowded:
                return
            await self._wait(SILENCE_S)

    async def news(self) -> AsyncGenerator[tuple[Choice, News] | None, None]:
        """What comes of the choices until all have ended; ``None`` where nothing has come for a while.

        Raises:
            EngineError: the engine could not finish one of them.
            ApiError: the server ends, and does not wait for this stream any longer.
        """
        loop = asyncio.get_running_loop()
        told = loop.time()
        while True:
            for choice in self.choices:
                if (news := self._advance(choice)) is not None:
                    yield choice, news
                    told = loop.time()
            if all(choice.over for choice in self.choices):
                return
            # Tokens may come without anything to tell: text that is held back is silence for the client.
            if loop.time() - told >= SILENCE_S:
                yield None
                told = loop.time()
            try:
                await self._wait(told + SILENCE_S - loop.time())
            except asyncio.CancelledError:
                # The end of the server cancels. A stream that has begun would end like a broken line without a word.
                if not (self.record.stream and self._service.stopping.is_set()):
                    raise
                raise ApiError(500, _CUT, code="shutting_down") from None

    async def whole(self) -> dict[int, News]:
        """All of each choice, by its index."""
        found = {choice.index: News() for choice in self.choices}
        async for one in self.news():
            if one is not None:
                choice, news = one
                found[choice.index].deltas += news.deltas
                found[choice.index].logprobs += news.logprobs
                found[choice.index].token_ids += news.token_ids
        return found

    def failed(self, error: BaseException) -> None:
        """Note what went wrong after the answer had begun."""
        self._error = error

    def end(self, error: BaseException | None = None) -> None:
        """Cancel what still runs and record the end; ending again does nothing."""
        if self._ended:
            return
        self._ended = True
        for choice in self.choices:
            choice.cancel()
            choice.watch(_nobody)  # the streams must not keep this job, and its prompt, alive
        complete = bool(self.choices) and all(choice.finish_reason is not None for choice in self.choices)
        self._account(self._error or (None if complete and isinstance(error, ClientGone) else error))
        self._service.ended(self.record)

    def usage(self) -> Usage:
        """The tokens of all choices so far; each prompt counts once."""
        self._sum_up()
        return self.record.usage

    def waiting_for(self) -> str:
        """What the agent's requests are waiting for, as far as one can see from outside."""
        agents = self._service.engine.state().agents
        state = next((one.state for one in agents if one.agent == self.record.agent), AgentState.QUEUED)
        return state.value

    def _start(self, order: Order, index: int) -> None:
        service, parser = self._service, order.new_parser()
        sampling = for_choice(order.sampling, index, order.new_grammar())
        stream = service.engine.submit(self.record.agent, order.tokens, sampling, salt=self._salt)
        decode = decoder(service.model.tokenizer, keep_special=parser.keeps_special)
        self.choices.append(Choice(len(self.choices), index == 0, stream, decode, order.stops, parser))

    async def _wait(self, timeout_s: float) -> None:
        """Wait for a wake-up, at most so long."""
        timer = asyncio.get_running_loop().call_later(max(timeout_s, 0.0), self._moved.set)
        await self._moved.wait()
        self._moved.clear()
        timer.cancel()

    def _advance(self, choice: Choice) -> News | None:
        """The choice's news, where there is something to tell."""
        ended = choice.finish_reason is not None
        news = choice.advance()
        if news.token_ids:
            self.record.last_token_unix_ns = time.time_ns()
            self.record.first_token_unix_ns = self.record.first_token_unix_ns or self.record.last_token_unix_ns
        over = not ended and choice.finish_reason is not None
        return news if over or news.deltas or news.logprobs or (self.token_ids and news.token_ids) else None

    def _account(self, error: BaseException | None) -> None:
        record = self.record
        record.choices = max(1, len(self.choices))
        self._sum_up()
        for choice in self.choices:
            record.tool_calls.update(choice.calls)
        if error is None:
            reasons = [choice.finish_reason or "stop" for choice in self.choices]
            record.outcome = "tool_calls" if "tool_calls" in reasons else (reasons[0] if reasons else "stop")
        else:
            record.outcome, record.error = outcome_of(error), str(error) or type(error).__name__

    def _sum_up(self) -> None:
        used_by = [choice.usage or Usage() for choice in self.choices]
        # Choices wait side by side: the request waited as long as the one that waited longest.
        longest = max(used_by, key=lambda used: used.queued_s + used.restoring_s, default=Usage())
        total = Usage(
            queued_s=longest.queued_s,
            restoring_s=longest.restoring_s,
            wait_intervals_unix_ns=longest.wait_intervals_unix_ns,
        )
        for choice, used in zip(self.choices, used_by, strict=True):
            total.output_tokens += choice.tokens
            for name in ("prefilled_tokens", "reprefilled_tokens"):
                setattr(total, name, getattr(total, name) + getattr(used, name))
            if choice.first_of_prompt:
                for name in ("prompt_tokens", "cached_device_tokens", "cached_host_tokens", "diverged_tokens"):
                    setattr(total, name, getattr(total, name) + getattr(used, name))
        self.record.usage, self.record.queued_s, self.record.restoring_s = total, total.queued_s, total.restoring_s


def _nobody() -> None:
    """Hear nothing."""


def outcome_of(error: BaseException) -> str:
    """A record's word for how a request failed."""
    if isinstance(error, QueueFull) or (isinstance(error, ApiError) and error.status in (429, 503)):
        return "queue_full"
    if isinstance(error, RequestRefused | ModelError | NotInstalled) or (
        isinstance(error, ApiError) and error.status < 500
    ):
        return "refused"
    if isinstance(error, ClientGone | asyncio.CancelledError):
        return "cancelled"
    return "error"


def told(error: EngineError | ApiError, service: Service) -> ApiError:
    """What the client is told of ``error``."""
    return error if isinstance(error, ApiError) else api_error(error, service.retry_after_s())


async def answer(
    service: Service,
    request: Request,
    job: Job,
    prepare: Callable[[], Awaitable[Sequence[Order]]],
    events: Callable[[], AsyncGenerator[bytes, None]],
    whole: Callable[[], Awaitable[bytes]],
) -> Response:
    """Carry out ``job`` from its preparation to its end.

    A stream begins only when the engine took the request, or let it wait for a while, so that a refusal has its status.

    Raises:
        ApiError: it was refused, or failed before anything was sent.
    """
    headers = {"X-Request-Id": job.record.response_id}

    async def everything() -> bytes:
        await job.submit(await prepare())
        return await whole()

    try:
        if job.record.stream:
            await job.submit(await prepare(), SILENCE_S)
            return EventStream(events(), job.end, headers)
        body = await unless_gone(request.receive, everything())
    except ClientGone as gone:
        job.end(gone)
        return Response(status_code=CLIENT_GONE)
    except (ApiError, EngineError) as error:
        job.end(error)
        raise told(error, service) from error
    except BaseException as error:
        job.end(error)
        if isinstance(error, asyncio.CancelledError) and service.stopping.is_set():
            return ApiError(503, _CUT, code="shutting_down").response()
        raise
    job.end()
    return Response(body, headers=headers, media_type="application/json")
