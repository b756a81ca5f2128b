"""Traces agents: who waits for a tool, from when to when; on disk before the tool runs, and signalled to the engine.

Names load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .agents import agent, human_wait
    from .decorators import traced_tool
    from .diagnostics import COUNTS
    from .identity import Agent, current_agent
    from .model_calls import Generation, current_generation, generation
    from .processor import KvtraceSpanProcessor
    from .propagation import PropagatingExecutor, event_hook, headers, instrument_client, propagate
    from .provider import configure, flush, shutdown
    from .receive import BadRequest, Receiver
    from .settings import Settings
    from .signals import Signal, Sink, ToolEnded, ToolStarted
    from .sinks import subscribe, unsubscribe

# No module may bear the name of a function here: importing it would put the module in the function's place.
_HOMES: Final = {
    "COUNTS": "diagnostics",
    "Agent": "identity",
    "BadRequest": "receive_body",
    "Generation": "model_calls",
    "KvtraceSpanProcessor": "processor",
    "PropagatingExecutor": "propagation",
    "Receiver": "receive",
    "Settings": "settings",
    "Signal": "signals",
    "Sink": "signals",
    "ToolEnded": "signals",
    "ToolStarted": "signals",
    "agent": "agents",
    "configure": "provider",
    "current_agent": "identity",
    "current_generation": "model_calls",
    "event_hook": "propagation",
    "flush": "provider",
    "generation": "model_calls",
    "headers": "propagation",
    "human_wait": "agents",
    "instrument_client": "propagation",
    "propagate": "propagation",
    "shutdown": "provider",
    "subscribe": "sinks",
    "traced_tool": "decorators",
    "unsubscribe": "sinks",
}

__all__ = [
    "COUNTS",
    "Agent",
    "BadRequest",
    "Generation",
    "KvtraceSpanProcessor",
    "PropagatingExecutor",
    "Receiver",
    "Settings",
    "Signal",
    "Sink",
    "ToolEnded",
    "ToolStarted",
    "agent",
    "configure",
    "current_agent",
    "current_generation",
    "event_hook",
    "flush",
    "generation",
    "headers",
    "human_wait",
    "instrument_client",
    "propagate",
    "shutdown",
    "subscribe",
    "traced_tool",
    "unsubscribe",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
