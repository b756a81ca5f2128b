"""``kvtrace bench prefill``: how fast a prompt that nobody has seen is computed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..batch import Chunk, Runner
from ..lean_runner import Limits
from ..model import LoadedModel
from ..sequence import Sampling
from ..wording import counted
from .model import runner_for, table_of, timed

GPU_TOKENS: Final = (2000, 6900, 32_000)
CPU_TOKENS: Final = (256, 512)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """One prompt of ``tokens``, computed in steps of ``step_tokens``; medians of ``repeats``."""

    tokens: int
    step_tokens: int
    repeats: int
    ms: float
    tokens_per_s: float


def measure_prefill(
    model: LoadedModel,
    tokens: Sequence[int],
    step_tokens: Sequence[int],
    repeats: int,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> list[PrefillResult]:
    """Each prompt length with each size of step, through the engine's own runner, until its first token is read.

    Args:
        model: what computes.
        tokens: lengths of the prompts.
        step_tokens: most tokens of one step.
        repeats: how many times each counts; the result is the median.
        on_phase: told in a few words what is being done.
    """
    on_phase("compiling")
    longest = max(tokens)
    blocks = model.geometry.blocks_for(longest)
    runner = runner_for(model, Limits(1, max(step_tokens), longest + 1), blocks)
    results = []
    for size in step_tokens:
        for count in tokens:
            on_phase(f"{counted(count, 'token')} in steps of {size:,}")
            results.append(_measure(model, runner, count, size, repeats))
    return results


def _measure(model: LoadedModel, runner: Runner, tokens: int, step_tokens: int, repeats: int) -> PrefillResult:
    chunks = prompt_chunks(tokens, step_tokens, table_of(0, model.geometry.blocks_for(tokens)))

    def prefill() -> None:
        for chunk in chunks[:-1]:
            runner.launch([chunk])
        runner.run(chunks[-1:])

    seconds = statistics.median(timed(prefill, model.device, repeats))
    return PrefillResult(tokens, step_tokens, repeats, seconds * 1e3, tokens / seconds)


def prompt_chunks(tokens: int, step_tokens: int, table: tuple[int, ...]) -> list[Chunk]:
    """A prompt of ``tokens`` in pieces of ``step_tokens``; the last one samples."""
    prompt = tuple(position % 251 + 1 for position in range(tokens))
    return [
        Chunk(0, prompt[start : start + step_tokens], start, table, 0, start + step_tokens >= tokens, Sampling(), 0, 0)
        for start in range(0, tokens, step_tokens)
    ]
