"""Everything the engine raises on purpose.

EngineError
├── ConfigError          a setting is out of range
├── ModelError           a model cannot be loaded or its state cannot be parked completely
├── RequestRefused       a request can never run here (too long, larger than the pool)
├── QueueFull            too many requests wait; try again later
└── EngineStopped        the engine was closed, or a step failed, while the request ran
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors the engine raises on purpose; the message is meant for the user."""


class NotInstalled(EngineError, ImportError):
    """A package that only the engine needs is missing; the message holds the command that installs it."""


class ConfigError(EngineError, ValueError):
    """A setting is out of range."""


class ModelError(EngineError):
    """A model cannot be loaded, or keeps state that kvtrace cannot park completely."""


class RequestRefused(EngineError, ValueError):
    """A request can never run on this engine, whatever the load."""


class QueueFull(EngineError):
    """Too many requests wait already."""


class EngineStopped(EngineError):
    """The engine stopped, or its step failed, before the request was done."""
