"""Errors as OpenAI's clients expect them: a status and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import EngineError, EngineStopped, ModelError, NotInstalled, QueueFull, RequestRefused
from .encoding import json_bytes

CLIENT_GONE: Final = 499  # nginx's number; nobody is there to read it
MOST_MESSAGE: Final = 1000  # characters
_BELOW_V1: Final = ("chat/", "completions", "responses", "models", "traces", "kv/")
_log = logging.getLogger(__name__)


class ApiError(Exception):
    """Ends a request with a sentence. ``retry_after_s`` tells the client when to come back."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        # It may quote what the client sent, which may be megabytes; who wrote it knows it from its beginning.
        message, param = shorten(message, MOST_MESSAGE), param and shorten(param, MOST_MESSAGE)
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def kind(self) -> str:
        """OpenAI's ``type`` for the status."""
        known = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return known.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")

    def response(self) -> Response:
        """The whole answer."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(json_bytes(self.body()), self.status, headers, "application/json")


class UnreadBody(HTTPException):
    """An :class:`ApiError` while a body is read, from where FastAPI lets nothing out but its own kind."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, error.message)
        self.error = error


def shorten(text: str, most: int) -> str:
    """``text``, its middle left out where it is longer than ``most``: advice stands at an error's end."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 2) :]}"


def api_error(error: EngineError, retry_after_s: int = 1) -> ApiError:
    """What the client is told of an error of the engine."""
    message = str(error)
    if isinstance(error, QueueFull):
        return ApiError(429, message, code="queue_full", retry_after_s=retry_after_s)
    if isinstance(error, RequestRefused | ModelError | NotInstalled):
        code = "context_length_exceeded" if "the context is" in message or "whole pool" in message else None
        return ApiError(400, message, param=getattr(error, "param", None), code=code)
    status = 503 if isinstance(error, EngineStopped) and "closed" in message else 500
    return ApiError(status, message, code="engine_error")


def add_handlers(app: FastAPI) -> None:
    """Answer every error in the one shape."""

    async def ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def engines(_request: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return api_error(error).response()

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _invalid(error).response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, UnreadBody):
            return error.error.response()
        response = ApiError(error.status_code, _unrouted(request, error)).response()
        response.headers.update(error.headers or {})
        return response

    async def unforeseen(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return ApiError(500, f"kvtrace failed ({type(error).__name__}); its log has the details").response()

    app.add_exception_handler(ApiError, ours)
    app.add_exception_handler(EngineError, engines)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)


def _unrouted(request: Request, error: HTTPException) -> str:
    """What is wrong with a path or a method; most often a client's base URL lacks ``/v1``."""
    path = request.url.path
    if error.status_code == 405:
        return f"{path} does not take {request.method}: send {(error.headers or {}).get('Allow', 'another method')}"
    if error.status_code != 404:
        return str(error.detail)
    if path.strip("/").startswith(_BELOW_V1):
        return f"there is no {path} here, but /v1{path}: the client's base URL ends in /v1"
    return f"there is no {path} here: clients' base URL is {request.base_url}v1; /openapi.json lists all paths"


def _invalid(error: RequestValidationError) -> ApiError:
    """The first thing wrong with a body, in one sentence."""
    first = _first(error.errors())
    kind, place = first.get("type"), [str(part) for part in first.get("loc", ()) if part not in ("body", "query")]
    if kind == "json_invalid":
        why = (first.get("ctx") or {}).get("error", "")
        return ApiError(400, f"the body is no JSON ({why}): send one JSON object")
    if not place:
        return ApiError(400, "send one JSON object, with the header Content-Type: application/json")
    # A union's branches are named in the path; the field itself comes first.
    name = place[0]
    return ApiError(400, f"{name}: {first.get('msg', 'is not valid')}", param=name)


def _first(errors: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first error; of a field that may be of several kinds, what is wrong within the kind that was sent."""
    if not errors:
        return {}
    field = errors[0].get("loc", ())[:2]
    same = [one for one in errors if one.get("loc", ())[:2] == field]
    return max(same, key=lambda one: (not str(one.get("type")).endswith("_type"), len(one.get("loc", ()))))
