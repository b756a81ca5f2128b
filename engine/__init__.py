"""The engine: a model whose agents' KV leaves device memory while they wait for tools.

Everything here is loaded when it is first used. The records, the settings and the policy need no torch;
``Engine`` and ``load_model`` do, and say how to install it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .config import EngineConfig, PolicyMode
from .errors import ConfigError, EngineError, EngineStopped, ModelError, NotInstalled, QueueFull, RequestRefused
from .records import EngineEvent, EventKind, Snapshot
from .sequence import Sampling, Usage
from .stream import Completion, TokenStream

if TYPE_CHECKING:
    from .api import Engine
    from .model import LoadedModel, load_model

__all__ = [
    "Completion",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineEvent",
    "EngineStopped",
    "EventKind",
    "LoadedModel",
    "ModelError",
    "NotInstalled",
    "PolicyMode",
    "QueueFull",
    "RequestRefused",
    "Sampling",
    "Snapshot",
    "TokenStream",
    "Usage",
    "load_model",
]

_LAZY: Final = {
    "Engine": ".api",
    "LoadedModel": ".model",
    "load_model": ".model",
}
_EXTRA: Final = frozenset({"torch", "transformers", "safetensors", "gguf", "jinja2"})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name], __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise NotInstalled(
            f"kvtrace.engine.{name} needs {error.name}, which is not installed; run: pip install 'kvtrace[engine]'"
        ) from error


def __dir__() -> list[str]:
    return __all__
