"""``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...errors import EngineError
from ..bodies import new_id, usage_body
from ..chat import chat_orders, chat_record, turn_ended
from ..documented import ERRORS, streamed
from ..encoding import comment, event, json_bytes
from ..errors import ApiError
from ..job import Job, answer, told
from ..records import RequestRecord
from ..routing import StrictRoute
from ..service import Service
from .build import Event, ResponseBuilder
from .convert import chat_request
from .schemas import ResponseBody, ResponsesRequest


def response_routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/responses", responses={**streamed(ResponseBody), **ERRORS})
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer an input; everything that came before stands in it."""
        chat = chat_request(body)
        job = Job(service, chat_record(service, chat, request, "responses"))
        return await answer(
            service,
            request,
            job,
            lambda: chat_orders(service, chat, job.record),
            lambda: _events(service, body, job),
            lambda: _whole(service, body, job),
        )

    return router


async def _whole(service: Service, body: ResponsesRequest, job: Job) -> bytes:
    found = await job.whole()
    turn_ended(service, job)
    (choice,) = job.choices
    builder = ResponseBuilder(_head(service, body, job.record), new_id)
    builder.take(found[choice.index].deltas)
    builder.end(choice.finish_reason or "stop", job.usage())
    return json_bytes(_with_own_usage(builder.body, job))


async def _events(service: Service, body: ResponsesRequest, job: Job) -> AsyncGenerator[bytes, None]:
    builder = ResponseBuilder(_head(service, body, job.record), new_id)
    try:
        yield _sent(builder.begin())
        async for one in job.news():
            if one is None:
                yield comment(job.waiting_for())
            elif events := builder.take(one[1].deltas):
                yield _sent(events)
        turn_ended(service, job)
        last = builder.end(job.choices[0].finish_reason or "stop", job.usage())
        last[-1]["response"] = _with_own_usage(last[-1]["response"], job)
        yield _sent(last)
    except (ApiError, EngineError) as error:
        job.failed(error)
        failure = told(error, service)
        yield _sent(builder.fail(failure.message, failure.code))


def _sent(events: Iterable[Event]) -> bytes:
    return b"".join(b"event: " + one["type"].encode() + b"\n" + event(one) for one in events)


def _with_own_usage(response: dict[str, Any], job: Job) -> dict[str, Any]:
    """The response with kvtrace's own figures in its usage."""
    own = usage_body(job.usage(), job.record.agent)["kvtrace"]
    return {**response, "usage": {**(response["usage"] or {}), "kvtrace": own}}


def _head(service: Service, body: ResponsesRequest, record: RequestRecord) -> dict[str, Any]:
    return {
        "id": record.response_id,
        "created_at": record.arrived_unix_ns // 10**9,
        "model": service.model.model_id,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
        "store": False,
        "temperature": record.temperature,
        "text": {"format": (body.text.format if body.text is not None else None) or {"type": "text"}},
        "tool_choice": body.tool_choice if body.tool_choice is not None else "auto",
        "tools": body.tools or [],
        "top_p": record.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
