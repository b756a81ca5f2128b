"""``kvtrace bench decode``: how long a decoding step takes, the host's work included, against what the memory allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..batch import UNREAD, Chunk, Runner
from ..lean_runner import Limits
from ..model import LoadedModel
from ..rawlink import synchronize
from ..sequence import Sampling
from ..wording import counted
from .model import copy_bytes_per_s, runner_for, table_of

_WARM_UP_STEPS: Final = 3
_GREEDY: Final = Sampling()


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """``batch`` sequences that have ``context_tokens`` each when the first step begins."""

    batch: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One case. ``floor_ms``: its weights and KV, read once at the rate at which the device copies its own memory.

    ``launch_ms``: the host's own work for a step, which runs beside the step before.
    """

    batch: int
    context_tokens: int
    steps: int
    ms_per_step: float
    p95_ms_per_step: float
    launch_ms: float
    tokens_per_s: float
    floor_bytes: int
    floor_ms: float
    times_floor: float


GPU_CASES: Final = (DecodeCase(1, 1000), DecodeCase(8, 1000), DecodeCase(32, 1000), DecodeCase(8, 6700))
CPU_CASES: Final = (DecodeCase(1, 256), DecodeCase(4, 256))


def measure_decode(
    model: LoadedModel,
    cases: Sequence[DecodeCase],
    steps: int,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> tuple[float, list[DecodeResult]]:
    """The device's copy rate in bytes a second, and each case through the engine's own runner.

    Every step is launched before the tokens of the one before are read, as the engine does. Keys and values are
    random, in blocks of their own for each sequence.

    Args:
        model: what decodes.
        cases: what to measure.
        steps: how many steps of each case count; the result is their median.
        on_phase: told in a few words what is being done.
    """
    on_phase("measuring the memory")
    copy_rate = copy_bytes_per_s(model.device)
    on_phase("compiling")
    blocks_for = model.geometry.blocks_for
    longest = max(case.context_tokens for case in cases) + steps + _WARM_UP_STEPS + 1
    blocks = max(case.batch * blocks_for(case.context_tokens + steps + _WARM_UP_STEPS + 1) for case in cases)
    slots = max(case.batch for case in cases)
    runner = runner_for(model, Limits(slots, max(slots, 16), longest), blocks)
    results = []
    for case in cases:
        on_phase(f"{case.batch} x {counted(case.context_tokens, 'token')}")
        results.append(_measure(model, runner, case, steps, copy_rate))
    return copy_rate, results


def _measure(model: LoadedModel, runner: Runner, case: DecodeCase, steps: int, copy_rate: float) -> DecodeResult:
    width = model.geometry.blocks_for(case.context_tokens + steps + _WARM_UP_STEPS + 1)
    tables = [table_of(index, width) for index in range(case.batch)]

    def chunks(step: int) -> list[Chunk]:
        token = (UNREAD,) if step else (1,)
        return [
            Chunk(index, token, case.context_tokens + step, table, 0, True, _GREEDY, 0, step)
            for index, table in enumerate(tables)
        ]

    synchronize(model.device)
    pending = runner.launch(chunks(0))
    launches, ends = [], []
    for step in range(1, steps + _WARM_UP_STEPS + 1):
        started = time.perf_counter()
        following = runner.launch(chunks(step))
        launches.append(time.perf_counter() - started)
        pending.tokens()
        ends.append(time.perf_counter())
        pending = following
    pending.tokens()
    gaps = [after - before for before, after in pairwise(ends)][_WARM_UP_STEPS - 1 :]
    floor_bytes = _read_bytes(model) + case.batch * case.context_tokens * model.geometry.token_bytes
    floor_ms = floor_bytes / copy_rate * 1e3
    ms = statistics.median(gaps) * 1e3
    return DecodeResult(
        batch=case.batch,
        context_tokens=case.context_tokens,
        steps=len(gaps),
        ms_per_step=ms,
        p95_ms_per_step=sorted(gaps)[int(0.95 * (len(gaps) - 1))] * 1e3,
        launch_ms=statistics.median(launches[_WARM_UP_STEPS:]) * 1e3,
        tokens_per_s=case.batch / ms * 1e3,
        floor_bytes=floor_bytes,
        floor_ms=floor_ms,
        times_floor=ms / floor_ms,
    )


def _read_bytes(model: LoadedModel) -> int:
    """Bytes of weights that a step reads: all, but for an embedding of which it looks up a few rows."""
    embedding = model.model.get_input_embeddings().weight
    head = model.model.get_output_embeddings().weight
    tied = head.data_ptr() == embedding.data_ptr()
    return model.weights_bytes - (0 if tied else embedding.nbytes)
