"""What the OpenAPI document says of answers."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from .schemas import ErrorBody

Responses = dict[int | str, dict[str, Any]]

ERRORS: Final[Responses] = {
    400: {"model": ErrorBody, "description": "The request can never run here; the message says why."},
    401: {"model": ErrorBody, "description": "The bearer key is missing or wrong."},
    403: {"model": ErrorBody, "description": "A web page or a host name that is not allowed to ask."},
    404: {"model": ErrorBody, "description": "Another model, or nothing at this path."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    422: {"model": ErrorBody, "description": "Not used: a body that does not fit its schema is answered with 400."},
    429: {"model": ErrorBody, "description": "Too many requests wait; Retry-After says when to come back."},
    500: {"model": ErrorBody, "description": "The engine could not finish the request."},
    503: {"model": ErrorBody, "description": "The model is still loading, or the server is shutting down."},
}


def streamed(model: type[BaseModel]) -> Responses:
    """An answer that is ``model``, or a stream of events where the request asks for one."""
    events = {"schema": {"description": "server-sent events; chats and completions end with [DONE]"}}
    return {200: {"model": model, "content": {"text/event-stream": events}}}
