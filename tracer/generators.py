"""Spans over calls that go on after they returned: coroutines, generators and async generators.

The span is current only while a step runs. Between steps the caller's context is as if nothing were traced, the body
runs in whatever task asks for the next step, and everything passes through: values sent in, exceptions thrown in
(closing is one of them), and the return value.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from inspect import CO_ITERABLE_COROUTINE
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from . import attributes as names
from .spans import OpenSpan

_SHORTEST_GAP_NS: Final = 1_000_000  # consumers faster than this cost the tool's time nothing worth a record
_MOST_GAPS: Final = 512  # bounds the record of an endless generator

LAZY_TYPES: Final = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


class Steps:
    """The steps of one generator under one span: when its body ran, and when its consumer did."""

    __slots__ = ("_gaps", "_paused_at", "_span", "_yielded")

    def __init__(self, span: OpenSpan, *, paused: bool = False) -> None:
        self._span = span
        self._gaps: list[int] = []
        self._yielded = 0
        self._paused_at = span.runtime.clock.unix_ns() if paused else None

    def resume(self) -> None:
        """Make the span current for a step."""
        if self._paused_at is not None:
            now = self._span.runtime.clock.unix_ns()
            if now - self._paused_at >= _SHORTEST_GAP_NS and len(self._gaps) < 2 * _MOST_GAPS:
                self._gaps += (self._paused_at, now)
            self._paused_at = None
        self._span.attach()

    def pause(self) -> None:
        """Give the caller's context back after a step."""
        self._span.suspend()

    def handed_out(self) -> None:
        """Note that the body yielded and the consumer's time begins."""
        self._yielded += 1
        self._paused_at = self._span.runtime.clock.unix_ns()

    def end(self, error: BaseException | None = None) -> None:
        """End the span with what the steps showed."""
        self._span.late_attributes[names.YIELDED] = self._yielded
        if self._gaps:
            self._span.late_attributes[names.SUSPENDED_INTERVALS] = tuple(self._gaps)
        self._span.end(error)


Began = tuple[Steps | None, Any]  # the steps (None: not traced) and the generator itself


def generator_driver(begin: Callable[..., Began]) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator function that calls ``begin`` at its first step and drives the generator it returns."""

    def drive(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        steps, generator = begin(*args, **kwargs)
        if steps is None:
            return (yield from generator)
        step, argument = generator.send, None
        try:
            while True:
                steps.resume()
                try:
                    item = step(argument)
                finally:
                    steps.pause()
                steps.handed_out()
                try:
                    step, argument = generator.send, (yield item)
                except BaseException as thrown:
                    # Thrown in below, outside this handler, so that it does not become the context of later errors.
                    step, argument = generator.throw, thrown
        except StopIteration as stop:
            steps.end()
            return stop.value
        except BaseException as error:
            steps.end(error)
            raise
        finally:
            argument = None

    return drive


def async_generator_driver(begin: Callable[..., Began]) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an async generator function that does as :func:`generator_driver` does."""

    async def drive(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        steps, generator = begin(*args, **kwargs)
        step, argument = generator.asend, None
        try:
            while True:
                _resume(steps)
                try:
                    item = await step(argument)
                finally:
                    _pause(steps)
                if steps is not None:
                    steps.handed_out()
                try:
                    step, argument = generator.asend, (yield item)
                except BaseException as thrown:
                    # An event loop that shuts down closes both in any order; athrow into the dead would return None.
                    if generator.ag_frame is None:
                        raise
                    step, argument = generator.athrow, thrown
        except StopAsyncIteration:
            _end(steps)
        except BaseException as error:
            _end(steps, error)
            raise
        finally:
            argument = None

    return drive


class _Pending:
    """Holds a coroutine that waits to be awaited, and closes it with the one that stands in for it.

    A program that never awaits then gets Python's own warning once, for the one it holds.
    """

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.coroutine.close()


async def _await_under(span: OpenSpan, pending: _Pending) -> Any:
    span.attach()
    try:
        result = await pending.coroutine
    except BaseException as error:
        span.detach()
        span.end(error)
        raise
    span.detach()
    if type(result) in LAZY_TYPES:
        return adopt(span, result)
    span.end_with(result)
    return result


def adopt(span: OpenSpan, result: Any) -> Any:
    """Return what a caller gets in place of a coroutine or generator: the same, with ``span`` open until its end."""
    if isinstance(result, CoroutineType) or _is_awaitable(result):
        adopted: Any = _await_under(span, _Pending(result))
    else:
        steps = Steps(span, paused=True)
        driver = generator_driver if isinstance(result, GeneratorType) else async_generator_driver
        adopted = driver(lambda: (steps, result))()
    adopted.__name__, adopted.__qualname__ = result.__name__, result.__qualname__
    return adopted


def _is_awaitable(result: Any) -> bool:
    """Tell whether ``types.coroutine`` made this generator to be awaited."""
    return isinstance(result, GeneratorType) and bool(result.gi_code.co_flags & CO_ITERABLE_COROUTINE)


def _resume(steps: Steps | None) -> None:
    if steps is not None:
        steps.resume()


def _pause(steps: Steps | None) -> None:
    if steps is not None:
        steps.pause()


def _end(steps: Steps | None, error: BaseException | None = None) -> None:
    if steps is not None:
        steps.end(error)
