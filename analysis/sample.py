"""Spans of imaginary agents, drawn from a seed: for pictures in the documentation and for tests of renderers.

Lengths follow what public coding-agent sessions show: most calls are quick reads and searches, most seconds go into
a few slow commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from kvtrace.tracer import attributes as names

from .testing import otlp_span

# Tool, share of the calls, median seconds, spread (the logarithm's standard deviation).
_TOOLS: Final = (
    ("read_file", 0.30, 0.02, 1.3),
    ("grep", 0.22, 0.35, 0.6),
    ("edit", 0.18, 0.09, 1.4),
    ("bash", 0.20, 2.6, 1.5),
    ("pytest", 0.10, 14.0, 0.9),
)
_MODEL: Final = (1.6, 0.7)
_FIRST_TOKENS: Final = 3000
_TURN_TOKENS: Final = 160
_NAMES: Final = ("refactor", "tests", "docs", "api", "lint", "review")


def sample_spans(agents: int, turns: int, seed: int, gap_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """Spans of ``agents`` agents with ``turns`` model calls each, every one but the last followed by one or two tools.

    Every second agent's run begins ``gap_s`` seconds later than it would; each run is ``2.1 * turns`` spans or so.
    """
    for number in range(agents):
        random = Random(f"{seed}/{number}")  # noqa: S311 - a picture, not a secret
        begins_s = random.uniform(0, 4) + gap_s * (number % 2)
        yield from _run(random, number, turns, begins_s)


def _run(random: Random, number: int, turns: int, begins_s: float) -> Iterator[dict[str, Any]]:
    agent = f"{_NAMES[number % len(_NAMES)]}-{number + 1}"
    trace, at_s, span, tokens = number + 1, begins_s, 1, _FIRST_TOKENS
    for turn in range(turns):
        until_s = at_s + _length(random, *_MODEL)
        usage = {names.GEN_AI_USAGE_INPUT_TOKENS: tokens, names.GEN_AI_USAGE_OUTPUT_TOKENS: _TURN_TOKENS // 2}
        yield otlp_span("chat", at_s, until_s, trace=trace, span=span + 1, parent=1, agent=agent, attributes=usage)
        at_s, span, tokens = until_s, span + 1, tokens + _TURN_TOKENS
        calls = _calls(random, at_s) if turn < turns - 1 else []
        for tool, start_s, end_s in calls:
            span, at_s = span + 1, max(at_s, end_s)
            yield otlp_span(
                "execute_tool", start_s, end_s, trace=trace, span=span, parent=1, agent=agent,
                attributes={names.GEN_AI_TOOL_NAME: tool},
            )  # fmt: skip
    label = {names.GEN_AI_AGENT_NAME: agent}
    yield otlp_span("invoke_agent", begins_s, at_s, trace=trace, span=1, agent=agent, attributes=label)


def _calls(random: Random, at_s: float) -> list[tuple[str, float, float]]:
    """One tool call, or now and then two at once: name, start, end."""
    drawn = random.choices(_TOOLS, weights=[tool[1] for tool in _TOOLS], k=2 if random.random() < 0.1 else 1)
    starts = [at_s + random.uniform(0.002, 0.03) for _ in drawn]
    return [
        (tool, start_s, start_s + _length(random, median_s, spread))
        for (tool, _, median_s, spread), start_s in zip(drawn, starts, strict=True)
    ]


def _length(random: Random, median_s: float, spread: float) -> float:
    return median_s * math.exp(random.gauss(0, spread))
