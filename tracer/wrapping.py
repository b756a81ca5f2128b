"""Picks the wrapper of a function once, when it is decorated; what a plain function returns decides the rest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .generators import LAZY_TYPES, Began, Steps, adopt, async_generator_driver, generator_driver
from .spans import OpenSpan

# Opens the span of one call from its arguments; None means that this call is not traced. Must not raise.
Opener = Callable[[tuple[Any, ...], dict[str, Any]], OpenSpan | None]


def wrap(function: Any, opener: Opener) -> Any:
    """Return ``function`` with a span around each call.

    Takes functions of all four kinds, methods, ``staticmethod`` and ``classmethod`` objects, partials, and objects with
    ``__call__``. Raises :class:`TypeError` for what cannot be called, and for classes.
    """
    if isinstance(function, staticmethod):
        return staticmethod(wrap(function.__func__, opener))
    if isinstance(function, classmethod):
        return classmethod(wrap(function.__func__, opener))
    if isinstance(function, functools.partialmethod):
        return functools.partialmethod(wrap(function.func, opener), *function.args, **function.keywords)
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"cannot trace {function!r}: decorate a function, a method or an object with __call__")
    wrapper = _wrapper_for(function)(function, opener)
    if inspect.isroutine(function):
        return functools.wraps(function)(wrapper)
    # The attributes of an object with state would only go stale on a copy.
    functools.update_wrapper(wrapper, function, updated=())
    wrapper.__name__ = wrapper.__qualname__ = name_of(function)
    return wrapper


def name_of(function: Any) -> str:
    """Return the name that a reader knows ``function`` by."""
    if isinstance(function, (staticmethod, classmethod)):
        return name_of(function.__func__)
    if isinstance(function, (functools.partial, functools.partialmethod)):
        return name_of(function.func)
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _wrapper_for(function: Any) -> Callable[[Any, Opener], Any]:
    # An object is as asynchronous as its __call__.
    kind = (
        function if inspect.isroutine(function) or isinstance(function, functools.partial) else type(function).__call__
    )
    if inspect.isasyncgenfunction(kind):
        return _wrap_async_generator
    if inspect.iscoroutinefunction(kind) or inspect.iscoroutinefunction(function):
        return _wrap_async
    if inspect.isgeneratorfunction(kind) and not _is_awaitable_generator(kind):
        return _wrap_generator
    return _wrap_plain


def _is_awaitable_generator(function: Any) -> bool:
    """Tell whether ``types.coroutine`` made this generator function awaitable, so that it must not be re-made."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    return bool(code and code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _wrap_plain(function: Any, opener: Opener) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        span = opener(args, kwargs)
        if span is None:
            return function(*args, **kwargs)
        span.attach()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            span.detach()
            span.end(error)
            raise
        span.detach()
        if type(result) in LAZY_TYPES:
            return adopt(span, result)
        span.end_with(result)
        return result

    return wrapper


def _wrap_async(function: Any, opener: Opener) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        span = opener(args, kwargs)
        if span is None:
            return await function(*args, **kwargs)
        span.attach()
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            span.detach()
            span.end(error)
            raise
        span.detach()
        if type(result) in LAZY_TYPES:
            return adopt(span, result)
        span.end_with(result)
        return result

    return wrapper


def _wrap_generator(function: Any, opener: Opener) -> Any:
    return generator_driver(_beginner(function, opener))


def _wrap_async_generator(function: Any, opener: Opener) -> Any:
    return async_generator_driver(_beginner(function, opener))


def _beginner(function: Any, opener: Opener) -> Callable[..., Began]:
    def begin(*args: Any, **kwargs: Any) -> Began:
        generator = function(*args, **kwargs)
        span = opener(args, kwargs)
        return (None if span is None else Steps(span)), generator

    return begin
