"""The server's own OpenTelemetry spans: what requests and KV did, beside the spans of the agents that caused it."""

from __future__ import annotations

from .install import install_spans
from .provider import own_provider
from .recorder import SpanRecorder

__all__ = ["SpanRecorder", "install_spans", "own_provider"]
