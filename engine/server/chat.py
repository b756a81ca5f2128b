"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import EngineError
from .bodies import new_id, usage_body
from .choice import Choice, News
from .documented import ERRORS, streamed
from .encoding import DONE, comment, event, json_bytes
from .errors import ApiError
from .job import Job, Order, answer, told
from .logprobs import chat_logprobs
from .parameters import chat_sampling, stop_strings
from .records import RequestRecord
from .routing import StrictRoute
from .schemas import ChatRequest, ChatResponse
from .service import Service
from .tools import ChatPart, ContentDelta, Delta, ReasoningDelta, ToolCallDelta, prepare_chat


def chat_routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/chat/completions", responses={**streamed(ChatResponse), **ERRORS})
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        job = Job(
            service,
            chat_record(service, body, request),
            salt=body.cache_salt,
            token_ids=bool(body.return_token_ids),
        )
        return await answer(
            service,
            request,
            job,
            lambda: chat_orders(service, body, job.record),
            lambda: _events(service, body, job),
            lambda: _whole(service, body, job),
        )

    return router


def chat_record(service: Service, body: ChatRequest, request: Request, endpoint: str = "chat") -> RequestRecord:
    """The record of a request that arrives now; ``endpoint`` is ``chat``, or ``responses``."""
    agent = service.identities.find(
        request.headers, cache_key=body.prompt_cache_key, user=body.user, messages=body.messages
    )
    return RequestRecord(
        response_id=new_id("chatcmpl" if endpoint == "chat" else "resp"),
        endpoint=endpoint,
        agent=agent,
        model=body.model,
        stream=bool(body.stream),
        arrived_unix_ns=time.time_ns(),
        traceparent=request.headers.get("traceparent"),
    )


async def chat_orders(service: Service, body: ChatRequest, record: RequestRecord) -> list[Order]:
    """Render the prompt and settle how the answer is sampled and read."""
    model = service.model
    service.check_model(body.model)
    service.check_open()
    part = ChatPart(
        messages=body.messages,
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=body.response_format,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning_effort,
    )
    stops = stop_strings(body)
    service.room.check_messages(len(body.messages))
    prepared = await service.in_worker(lambda: prepare_chat(model, part, service.room.check_text))
    sampling = chat_sampling(body, service.defaults, service.room.left(len(prepared.tokens)))
    record.chosen(sampling)
    return [Order(prepared.tokens, sampling, body.n or 1, stops, prepared.new_parser, prepared.new_grammar)]


async def _whole(service: Service, body: ChatRequest, job: Job) -> bytes:
    found = await job.whole()
    turn_ended(service, job)
    choices = [_choice(service, body, choice, found[choice.index]) for choice in job.choices]
    usage = usage_body(job.usage(), job.record.agent)
    return json_bytes({**_head(service, job.record, "chat.completion"), "choices": choices, "usage": usage})


async def _events(service: Service, body: ChatRequest, job: Job) -> AsyncGenerator[bytes, None]:
    head = _head(service, job.record, "chat.completion.chunk")
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    if with_usage:
        head["usage"] = None

    def chunk(choice: Choice, delta: dict[str, Any], news: News | None = None, reason: str | None = None) -> bytes:
        logprobs = chat_logprobs(news.logprobs, service.token_text) if body.logprobs and news is not None else None
        one = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if job.token_ids:
            one["token_ids"] = [] if news is None else news.token_ids
        return event({**head, "choices": [one]})

    try:
        for choice in job.choices:
            yield chunk(choice, {"role": "assistant", "content": ""})
        async for one in job.news():
            if one is None:
                yield comment(job.waiting_for())
                continue
            choice, news = one
            for number, delta in enumerate(_deltas(news, job.token_ids)):
                yield chunk(choice, delta, news if number == 0 else None)
            if choice.finish_reason is not None:
                yield chunk(choice, {}, None, choice.finish_reason)
        turn_ended(service, job)
        if with_usage:
            yield event({**head, "choices": [], "usage": usage_body(job.usage(), job.record.agent)})
    except (ApiError, EngineError) as error:
        job.failed(error)
        yield event(told(error, service).body())
    else:
        yield DONE


def turn_ended(service: Service, job: Job) -> None:
    """Tell the engine what the agent does next: wait for these tools, or for a person."""
    calls = {call: tool for choice in job.choices for call, tool in choice.calls.items()}
    service.identities.handed_out(job.record.agent, calls)
    service.engine.turn_ended(job.record.agent, calls)


def _head(service: Service, record: RequestRecord, kind: str) -> dict[str, Any]:
    return {
        "id": record.response_id,
        "object": kind,
        "created": record.arrived_unix_ns // 10**9,
        "model": service.model.model_id,
    }


def _deltas(news: News, token_ids: bool) -> list[dict[str, Any]]:
    """Each delta as the API has it; what comes without text still needs a chunk to travel in."""
    bare = news.logprobs or (token_ids and news.token_ids)
    return [_delta(delta) for delta in news.deltas] or ([{}] if bare else [])


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case ContentDelta():
            return {"content": delta.text}
        case ReasoningDelta():
            return {"reasoning_content": delta.text}
        case ToolCallDelta():
            call: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.arguments}}
            if delta.id is not None:
                call |= {"id": delta.id, "type": "function"}
                call["function"] = {"name": delta.name, "arguments": delta.arguments}
            return {"tool_calls": [call]}


def _choice(service: Service, body: ChatRequest, choice: Choice, news: News) -> dict[str, Any]:
    logprobs = chat_logprobs(news.logprobs, service.token_text) if body.logprobs else None
    one = {
        "index": choice.index,
        "message": _message(news.deltas),
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }
    return {**one, "token_ids": news.token_ids} if body.return_token_ids else one


def _message(deltas: list[Delta]) -> dict[str, Any]:
    """The message that the deltas add up to."""
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            call = calls.setdefault(
                delta.index, {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": ""}}
            )
            call["function"]["arguments"] += delta.arguments
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls.values())
    return message
