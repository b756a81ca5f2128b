"""``POST /v1/completions``: text or token ids, continued as they are."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import EngineError
from .bodies import new_id, usage_body
from .choice import Choice, News
from .documented import ERRORS, streamed
from .encoding import DONE, comment, event, json_bytes
from .errors import ApiError
from .job import Job, Order, answer, told
from .logprobs import text_logprobs
from .parameters import completion_sampling, stop_strings
from .records import RequestRecord
from .routing import StrictRoute
from .schemas import MOST_PROMPTS, CompletionRequest, CompletionResponse
from .service import Service
from .tools.deltas import ContentDelta, PlainParser

_MOST_CHOICES = MOST_PROMPTS


def completion_routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/completions", responses={**streamed(CompletionResponse), **ERRORS})
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several."""
        job = Job(
            service,
            _record(service, body, request),
            salt=body.cache_salt,
            token_ids=bool(body.return_token_ids),
        )
        return await answer(
            service,
            request,
            job,
            lambda: _orders(service, body, job.record),
            lambda: _events(service, body, job),
            lambda: _whole(service, body, job),
        )

    return router


def _record(service: Service, body: CompletionRequest, request: Request) -> RequestRecord:
    return RequestRecord(
        response_id=new_id("cmpl"),
        endpoint="completions",
        agent=service.identities.find(request.headers, cache_key=body.prompt_cache_key, user=body.user),
        model=body.model,
        stream=bool(body.stream),
        arrived_unix_ns=time.time_ns(),
        traceparent=request.headers.get("traceparent"),
    )


async def _orders(service: Service, body: CompletionRequest, record: RequestRecord) -> list[Order]:
    service.check_model(body.model)
    service.check_open()
    stops, n = stop_strings(body), body.n or 1
    sampling = completion_sampling(body, service.defaults)
    record.chosen(sampling)
    prompts = await _prompts(service, body.prompt)
    if len(prompts) * n > _MOST_CHOICES:
        raise ApiError(400, f"{len(prompts)} prompts by n = {n} are more than {_MOST_CHOICES}: send fewer", param="n")
    for prompt in prompts:
        service.room.left(len(prompt))
    return [Order(prompt, sampling, n, stops, PlainParser, lambda: None) for prompt in prompts]


async def _prompts(service: Service, prompt: str | Sequence[Any]) -> list[Sequence[int]]:
    """The prompt or prompts as token ids. Lists of ids are not looked at: they are long, and the engine checks them."""
    if not isinstance(prompt, str) and isinstance(prompt[0], int):
        return [cast("Sequence[int]", prompt)]
    if not isinstance(prompt, str) and not isinstance(prompt[0], str):
        return list(cast("Sequence[Sequence[int]]", prompt))
    texts = [prompt] if isinstance(prompt, str) else list(cast("Sequence[str]", prompt))
    for text in texts:
        service.room.check_text(len(text))
    tokenizer = service.model.tokenizer
    # The tokenizer's own opening token, where the model has one, belongs to a text that begins here.
    return await service.in_worker(lambda: [list(tokenizer.encode(text)) for text in texts])


async def _whole(service: Service, body: CompletionRequest, job: Job) -> bytes:
    found = await job.whole()
    choices = [_choice(service, body, choice, found[choice.index]) for choice in job.choices]
    usage = usage_body(job.usage(), job.record.agent)
    return json_bytes({**_head(service, job.record), "choices": choices, "usage": usage})


async def _events(service: Service, body: CompletionRequest, job: Job) -> AsyncGenerator[bytes, None]:
    head = _head(service, job.record)
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    if with_usage:
        head["usage"] = None
    offsets = [0] * len(job.choices)
    try:
        async for one in job.news():
            if one is None:
                yield comment(job.waiting_for())
                continue
            choice, news = one
            one_choice = _choice(service, body, choice, news, offsets[choice.index])
            offsets[choice.index] += sum(map(len, (one_choice["logprobs"] or {}).get("tokens", ())))
            yield event({**head, "choices": [one_choice]})
        if with_usage:
            yield event({**head, "choices": [], "usage": usage_body(job.usage(), job.record.agent)})
    except (ApiError, EngineError) as error:
        job.failed(error)
        yield event(told(error, service).body())
    else:
        yield DONE


def _head(service: Service, record: RequestRecord) -> dict[str, Any]:
    return {
        "id": record.response_id,
        "object": "text_completion",
        "created": record.arrived_unix_ns // 10**9,
        "model": service.model.model_id,
    }


def _choice(service: Service, body: CompletionRequest, choice: Choice, news: News, offset: int = 0) -> dict[str, Any]:
    text = "".join(delta.text for delta in news.deltas if isinstance(delta, ContentDelta))
    wanted = body.logprobs is not None
    one = {
        "index": choice.index,
        "text": text,
        "logprobs": text_logprobs(news.logprobs, service.token_text, offset) if wanted else None,
        "finish_reason": choice.finish_reason,
    }
    return {**one, "token_ids": news.token_ids} if body.return_token_ids else one
