"""Arguments and results as span attributes, for those who asked: cut at valid UTF-8, with size and hash beside.

What JSON does not know is named by its type, so that nobody's slow or raising ``__repr__`` runs. Whatever still goes
wrong stays here.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from . import attributes as names
from .diagnostics import internal_error
from .otlp_json import AttributeValue

MOST_BYTES: Final = 8192  # of one attribute, in UTF-8
RESULT: Final = "return"  # names the result in a list of what to capture, as it does in __annotations__

Capture = bool | Collection[str] | None


def resolve(asked: Capture, process_wide: bool | None) -> bool | Collection[str]:
    """Return what one tool captures: the process's ``False`` is a veto, and who says nothing follows the process."""
    if process_wide is False:
        return False
    return bool(process_wide) if asked is None else asked


class Parameters:
    """The names of a tool's positional parameters, looked up when first needed."""

    __slots__ = ("_function", "_names")

    def __init__(self, function: Any) -> None:
        self._function = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
        self._names: tuple[str, ...] | None = None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without the instance or class of a method; what has no name under ``args``."""
        if self._names is None:
            self._names = _positional(self._function)
        named = dict(zip(self._names, args, strict=False))
        if self._names[:1] in (("self",), ("cls",)):
            del named[self._names[0]]
        if len(args) > len(self._names):
            named["args"] = list(args[len(self._names) :])
        return {**named, **kwargs}


def arguments(
    parameters: Parameters, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: bool | Collection[str]
) -> dict[str, AttributeValue]:
    """Return the attributes for a call's arguments; ``wanted`` is ``True`` for all, or the names to keep."""
    try:
        bound = parameters.bind(args, kwargs)
        if wanted is not True:
            bound = {name: value for name, value in bound.items() if name in _collection(wanted)}
        return _content(names.GEN_AI_TOOL_CALL_ARGUMENTS, bound) if bound or wanted is True else {}
    except Exception as error:
        internal_error("the capture of arguments", error)
        return {}


def result(value: object, wanted: bool | Collection[str]) -> dict[str, AttributeValue]:
    """Return the attributes for a call's result, if it is wanted."""
    if wanted is not True and RESULT not in _collection(wanted):
        return {}
    try:
        return _content(names.GEN_AI_TOOL_CALL_RESULT, value)
    except Exception as error:
        internal_error("the capture of a result", error)
        return {}


def _collection(wanted: bool | Collection[str]) -> Collection[str]:
    return () if isinstance(wanted, bool) else wanted


def _content(key: str, value: object) -> dict[str, AttributeValue]:
    data = json.dumps(value, ensure_ascii=False, default=_placeholder).encode("utf-8", "replace")
    return {
        key: data[:MOST_BYTES].decode("utf-8", "ignore"),
        key + names.CONTENT_BYTES_SUFFIX: len(data),
        key + names.CONTENT_SHA256_SUFFIX: hashlib.sha256(data).hexdigest(),
    }


def _placeholder(value: object) -> str:
    return f"<{type(value).__qualname__}>"


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
