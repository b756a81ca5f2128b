"""Spans that are context managers and decorators in one: what agents, model calls and waits for people share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

from .spans import OpenSpan
from .wrapping import wrap

P = ParamSpec("P")
R = TypeVar("R")
Handle = TypeVar("Handle")


class Scope(ABC, Generic[Handle]):
    """Opens a span for a ``with`` or ``async with`` block, or for every call of a function that it decorates.

    One object serves any number of decorated calls, and one block at a time.
    """

    def __init__(self) -> None:
        self._block: OpenSpan | None = None

    @abstractmethod
    def _open(self) -> tuple[OpenSpan, Handle]:
        """Start a span, and return it with what the block gets to see of it."""

    def __enter__(self) -> Handle:
        if self._block is not None:
            name = type(self).__name__
            raise RuntimeError(f"this {name}(...) is already open: make a new one for each block")
        self._block, handle = self._open()
        self._block.attach()
        return handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        span, self._block = self._block, None
        if span is not None:
            span.detach()
            span.end(error)

    async def __aenter__(self) -> Handle:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate ``function``: sync, async, a generator or a method; every call opens a span of its own."""
        decorated: Callable[P, R] = wrap(function, lambda args, kwargs: self._open()[0])
        return decorated
