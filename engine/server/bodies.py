"""The parts that answers of both kinds of completion share. Pure."""

from __future__ import annotations

import secrets
from typing import Any

from ..sequence import Usage


def new_id(prefix: str) -> str:
    """An id for a response, such as ``chatcmpl-…``."""
    return f"{prefix}-{secrets.token_hex(12)}"


def usage_body(usage: Usage, agent: str) -> dict[str, Any]:
    """OpenAI's ``usage``, with kvtrace's figures beside it (:class:`.schemas.UsageBody`)."""
    cached = usage.cached_device_tokens + usage.cached_host_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "kvtrace": {
            "agent": agent,
            "cached_device_tokens": usage.cached_device_tokens,
            "cached_host_tokens": usage.cached_host_tokens,
            "prefilled_tokens": usage.prefilled_tokens,
            "reprefilled_tokens": usage.reprefilled_tokens,
            "diverged_tokens": usage.diverged_tokens,
            "queued_s": usage.queued_s,
            "restoring_s": usage.restoring_s,
            "queued_unix_ns": [instant for pair in usage.wait_intervals_unix_ns for instant in pair],
        },
    }
