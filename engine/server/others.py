"""The small routes: health, models, what is refused, the engine's state, tool spans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from kvtrace.tracer.receive import BadRequest, Received

from .documented import ERRORS, Responses
from .encoding import event, json_bytes
from .errors import ApiError
from .schemas import ErrorBody, Health, ModelList
from .service import Service
from .sse import EventStream

_INLINE_BYTES: Final = 1 << 16  # a larger batch of spans is read off the event loop
_JSON: Final = "application/json"
_STATE: Final[Responses] = {
    200: {
        "description": "Both memory tiers and every agent, as docs/state.schema.json has it.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


def health_routes(service: Service) -> APIRouter:
    """Whether the server is up, which model it has."""
    router = APIRouter()

    @router.get("/v1/health", responses={200: {"model": Health}, 503: {"model": Health}})
    @router.get("/health", responses={200: {"model": Health}, 503: {"model": Health}})
    async def health() -> Response:
        """200 when requests are answered; else 503 with the phase of the start, or of the end."""
        stopping = service.stopping.is_set()
        healthy = service.ready and not stopping and service.engine.failure is None
        phase = "stopping" if stopping else service.phase
        if service.ready and service.engine.failure is not None:
            phase = service.engine.failure
        seconds = round(time.monotonic() - service.started_monotonic, 3)
        body = {"status": "ok" if healthy else "unavailable", "phase": phase, "seconds": seconds}
        return Response(json_bytes(body), 200 if healthy else 503, media_type=_JSON)

    @router.get("/v1/models", responses={200: {"model": ModelList}, **ERRORS})
    async def list_models() -> Response:
        """The model that is served."""
        return Response(json_bytes({"object": "list", "data": [_model(service)]}), media_type=_JSON)

    @router.get("/v1/models/{name:path}", responses=ERRORS)
    async def get_model(name: str) -> Response:
        """The same, by its name."""
        service.check_model(name)
        return Response(json_bytes({**_model(service), "id": name}), media_type=_JSON)

    @router.post("/v1/embeddings", responses={404: {"model": ErrorBody}})
    async def create_embedding() -> Response:
        """Refused: this server generates text."""
        raise ApiError(
            404, "embeddings are not served here: kvtrace serves models that generate text", code="unsupported_endpoint"
        )

    return router


def state_routes(service: Service) -> APIRouter:
    """What the engine's memory looks like."""
    router = APIRouter()

    @router.get("/v1/kv/state", responses={**_STATE, **ERRORS})
    async def kv_state(
        request: Request,
        watch: bool = False,
        interval: Annotated[float, Query(ge=0.1, le=60, allow_inf_nan=False)] = 1.0,
    ) -> Response:
        """One snapshot, or, with ``watch=1`` or ``Accept: text/event-stream``, one every ``interval`` seconds."""
        engine = service.engine
        if watch or "text/event-stream" in request.headers.get("accept", ""):
            return EventStream(_snapshots(service, interval))
        return Response(json_bytes(engine.state()), media_type=_JSON)

    return router


def span_routes(service: Service) -> APIRouter:
    """OTLP/HTTP: tool calls begin and end."""
    router = APIRouter()

    @router.post("/v1/traces", include_in_schema=False)
    @router.post("/v1/logs", include_in_schema=False)
    async def receive_spans(request: Request) -> Response:
        """Take spans and log events; tools' starts and ends become signals to the engine."""
        engine = service.engine
        content_type = request.headers.get("content-type", "")
        encoding, path = request.headers.get("content-encoding"), request.url.path
        try:
            body = await _bounded(request, service.receiver.limits.body_bytes)

            def receive() -> Received:
                return service.receiver.receive(body, content_type, encoding, path=path)

            received = receive() if len(body) <= _INLINE_BYTES else await service.in_worker(receive)
        except BadRequest as error:
            content, media_type = error.response(content_type)
            return Response(content, error.status, media_type=media_type)
        for signal in received.signals:
            engine.signal(signal)
        return Response(received.response_body, received.status, media_type=received.response_content_type)

    return router


async def _bounded(request: Request, most: int) -> bytes:
    """The body, of which no more than ``most`` bytes are ever held; raises :class:`BadRequest`."""
    length = request.headers.get("content-length", "")
    too_large = BadRequest(413, f"the body has more than {most} bytes: send smaller batches")
    if length.isascii() and length.isdigit() and int(length) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def _snapshots(service: Service, interval_s: float) -> AsyncGenerator[bytes, None]:
    while not service.stopping.is_set():
        yield event(service.engine.state())
        # The end of the server ends the stream at once; whoever looks at it is not to hold up the shutdown.
        try:
            await asyncio.wait_for(service.stopping.wait(), interval_s)
        except TimeoutError:
            continue


def _model(service: Service) -> dict[str, object]:
    return {
        "id": service.model.model_id,
        "object": "model",
        "created": service.created_unix,
        "owned_by": "kvtrace",
        "max_model_len": service.room.context_tokens,
    }
