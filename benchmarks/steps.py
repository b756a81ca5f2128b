"""What a step of the engine costs: tokens of a prompt with others decoding beside, and which kernels take the time.

    python benchmarks/steps.py [--json benchmarks/results/h200-steps.json] [--model random:qwen3-8b] [--no-profile] [--seconds 3]

Steps go through the engine's own runner, each from its launch to its last kernel on an idle device, host's work included.
Beside each stand two bounds: what the memory needs for the bytes that the step reads (weights, and KV of the past) at the
rate at which the device copies its own memory, and what the processors need for the step's multiplications at the rate of
one large matrix product. The longer of the two is what the step could take at best. ``profile`` has for some
steps each kernel's milliseconds a step by its name, so what is over can be looked for; kernels that run side by side count
each for itself, so their sum may exceed the step. ``sustained`` has the same steps over and over, one launched while the
one before runs, as a server at work has them: a card that reaches its power limit lowers its clock after some tenths of a second. Takes
one and a half minutes on an H200, a third of it for compiling. With ``--device cpu`` it runs small and shows only that it works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

from kvtrace.engine.batch import Chunk, Runner
from kvtrace.engine.bench.machine import machine
from kvtrace.engine.bench.model import copy_bytes_per_s, runner_for, table_of, timed
from kvtrace.engine.device import find_device
from kvtrace.engine.lean_runner import Limits
from kvtrace.engine.model import LoadedModel, load_model
from kvtrace.engine.rawlink import synchronize
from kvtrace.engine.sequence import Sampling

SCHEMA_VERSION: Final = 1
REPEATS: Final = 9
PROFILED_REPEATS: Final = 3
KERNELS: Final = 14
PROMPT_ID: Final = 1 << 20
SUSTAINED_S: Final = 3.0
REST_S: Final = 1.0
FIRST: Final = slice(2, 12)  # steps after a rest; two for the pipeline to fill
PRODUCT: Final = 8192  # rows and columns of the large matrix product


@dataclass(frozen=True, slots=True)
class Step:
    """``new`` tokens of one prompt that has ``start`` already, and one token each of ``decoding`` others with ``past``."""

    new: int
    start: int
    decoding: int
    past: int = 6400

    def chunks(self, tables: Sequence[tuple[int, ...]]) -> list[Chunk]:
        """For the runner; each sequence has blocks of its own, the prompt the last ones."""
        greedy = Sampling()
        found = [Chunk(i, (1,), self.past, tables[i], 0, True, greedy, 0, 1) for i in range(self.decoding)]
        if self.new:
            tokens = tuple(1 + i % 200 for i in range(self.new))
            found.append(Chunk(PROMPT_ID, tokens, self.start, tables[-1], 0, True, greedy, 0, 0))
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps to time, those of them to profile, and the runner's limits: ``width`` blocks a sequence."""

    steps: tuple[Step, ...]
    profiled: tuple[Step, ...]
    slots: int
    step_tokens: int
    width: int


NEW: Final = (
    *((25, 3000), (57, 3000), (101, 6600), (121, 3000), (185, 3000), (249, 0), (249, 3000), (249, 5700), (377, 3000)),
    *((505, 3000), (761, 3000), (1016, 0), (1016, 3000), (1016, 5000)),
)
SOME: Final = ((101, 6600), (249, 3000), (505, 3000), (1016, 3000))
GPU: Final = Plan(
    steps=tuple(
        Step(new, start, decoding)
        for decoding in (0, 1, 4, 7, 8)
        for new, start in (((0, 0),) if decoding else ()) + (NEW if decoding in (0, 7) else SOME)
    ),
    profiled=tuple(
        Step(*each)
        for each in ((0, 0, 8), (101, 6600, 7), (249, 3000, 0), (249, 3000, 7), (505, 3000, 7), (1016, 3000, 7))
    ),
    slots=9,
    step_tokens=1024,
    width=440,
)
SMALL: Final = Plan(
    steps=(Step(0, 0, 2, 40), Step(16, 16, 0, 40), Step(16, 16, 2, 40)),
    profiled=(Step(16, 16, 2, 40),),
    slots=3,
    step_tokens=32,
    width=4,
)


def measure(
    model: LoadedModel,
    plan: Plan,
    repeats: int = REPEATS,
    on_phase: Callable[[str], None] = print,
    seconds: float = SUSTAINED_S,
) -> dict[str, Any]:
    """The steps of ``plan``: figures for JSON. ``seconds``: how long each of the profiled ones is sustained."""
    began = time.monotonic()
    limits = Limits(plan.slots, plan.step_tokens, plan.width * model.geometry.block_tokens)
    copy_rate, product_rate = copy_bytes_per_s(model.device), operations_per_s(model)
    runner = runner_for(model, limits, plan.slots * plan.width)
    tables = [table_of(index, plan.width) for index in range(plan.slots)]
    ready_s = time.monotonic() - began
    on_phase(f"compiled and captured after {ready_s:.0f} s")
    rows = []
    for step in plan.steps:
        ms = milliseconds(runner, step.chunks(tables), model.device, repeats)
        memory_ms = read_bytes(model, step) / copy_rate * 1e3
        compute_ms = operations(model, step) / product_rate * 1e3
        rows.append({**asdict(step), "ms": ms, "memory_ms": memory_ms, "compute_ms": compute_ms})
    return {
        "copy_bytes_per_s": copy_rate,
        "operations_per_s": product_rate,
        "ready_s": ready_s,
        "steps": rows,
        "sustained": [sustained(runner, step, tables, model.device, seconds) for step in plan.profiled],
        "profile": [profile(runner, step, tables, model.device) for step in plan.profiled],
    }


def milliseconds(runner: Runner, chunks: Sequence[Chunk], device: torch.device, repeats: int) -> float:
    """Median time of one step."""
    if device.type == "cpu":
        return statistics.median(timed(lambda: runner.run(chunks), device, repeats)) * 1e3
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize(device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        pending = runner.launch(chunks)
        end.record()
        end.synchronize()
        pending.tokens()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def sustained(
    runner: Runner, step: Step, tables: Sequence[tuple[int, ...]], device: torch.device, seconds: float
) -> dict[str, Any]:
    """A step over and over for ``seconds``, after a rest: ms of the first ones and of the last quarter, and the card by then."""
    chunks, ends = step.chunks(tables), [0.0]
    synchronize(device)
    time.sleep(min(REST_S, seconds))
    card: dict[str, float] = {}
    before, began = runner.launch(chunks), time.perf_counter()
    while len(ends) <= FIRST.stop or ends[-1] < seconds:
        pending = runner.launch(chunks)
        before.tokens()
        before = pending
        ends.append(time.perf_counter() - began)
        if not card and ends[-1] > 0.9 * seconds:
            card = state_of(device)
    before.tokens()
    each = [1e3 * (after - at) for at, after in pairwise(ends)]
    first, last = statistics.median(each[FIRST]), statistics.median(each[-len(each) // 4 :])
    return {**asdict(step), "seconds": ends[-1], "first_ms": first, "last_ms": last, **card}


def state_of(device: torch.device) -> dict[str, float]:
    """The card's clock and power at this instant; nothing where no library tells them (``pip install nvidia-ml-py`` or ``amdsmi``)."""
    if device.type != "cuda":
        return {}
    try:
        return {"clock_mhz": torch.cuda.clock_rate(device), "power_w": torch.cuda.power_draw(device) / 1e3}
    except Exception:  # the libraries have errors of their own, and torch another where there is none
        return {}


def profile(runner: Runner, step: Step, tables: Sequence[tuple[int, ...]], device: torch.device) -> dict[str, Any]:
    """A step's kernels by their names, the longest first; on a CPU torch's operators instead."""
    from torch.profiler import ProfilerActivity, profile

    gpu, chunks = device.type != "cpu", step.chunks(tables)
    for _ in range(2):
        runner.run(chunks)
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as found:
        for _ in range(PROFILED_REPEATS):
            runner.run(chunks)
        if gpu:
            torch.cuda.synchronize(device)
    spent: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in found.events():
        spent[one.name][0] += (one.device_time_total if gpu else one.self_cpu_time_total) / 1e3 / PROFILED_REPEATS
        spent[one.name][1] += 1 / PROFILED_REPEATS
    # Calls of the host are listed as well, and take the device no time.
    longest = sorted((item for item in spent.items() if item[1][0] > 0), key=lambda item: -item[1][0])[:KERNELS]
    return {
        **asdict(step),
        "kernels_ms": sum(ms for ms, _ in spent.values()),
        "kernels": [{"name": name[:160], "ms": ms, "launches": launches} for name, (ms, launches) in longest],
    }


def operations_per_s(model: LoadedModel) -> float:
    """Multiplications and additions a second of one large matrix product."""
    size = PRODUCT if model.device.type != "cpu" else 256
    left, right = (torch.randn((size, size), device=model.device, dtype=model.dtype) for _ in range(2))
    seconds = timed(lambda: torch.mm(left, right), model.device, 8)
    return 2 * size**3 / statistics.median(seconds)


def read_bytes(model: LoadedModel, step: Step) -> int:
    """Bytes that a step must read: each weight once, but for an embedding looked up, and KV of the past."""
    embedding, head, _ = weights(model)
    looked_up = embedding.nbytes if head is not embedding else 0
    past = step.start * bool(step.new) + step.past * step.decoding
    return model.weights_bytes - looked_up + past * model.geometry.token_bytes


def operations(model: LoadedModel, step: Step) -> float:
    """Multiplications and additions of a step: products of every row, the head's of the sampled ones, and attention."""
    _, head, layers = weights(model)
    rows, sampled = step.new + step.decoding, step.decoding + bool(step.new)
    pairs = step.new * (step.start + (step.new + 1) / 2) + step.decoding * (step.past + 1)
    geometry, heads = model.geometry, model.model.config.num_attention_heads
    return 2 * (rows * layers + sampled * head.numel()) + 4 * pairs * heads * geometry.head_dim * geometry.layers


def weights(model: LoadedModel) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The embedding, the head (the same tensor where they are tied), and how many numbers all else has."""
    embedding, head = (
        each.weight for each in (model.model.get_input_embeddings(), model.model.get_output_embeddings())
    )
    if head.data_ptr() == embedding.data_ptr():
        head = embedding
    others = embedding.nbytes + (0 if head is embedding else head.nbytes)
    return embedding, head, (model.weights_bytes - others) // embedding.element_size()


def show(found: dict[str, Any]) -> None:
    """Tables for people."""
    print(f"{'new':>6}{'start':>7}{'decoding':>10}{'ms':>9}{'memory':>9}{'compute':>9}{'÷ longer':>10}")
    for row in found["steps"]:
        bound = max(row["memory_ms"], row["compute_ms"])
        print(
            f"{row['new']:>6,}{row['start']:>7,}{row['decoding']:>10}{row['ms']:>9.2f}{row['memory_ms']:>9.2f}"
            f"{row['compute_ms']:>9.2f}{row['ms'] / bound:>10.2f}"
        )
    for row in found["sustained"]:
        card = f"; {row['clock_mhz']:,.0f} MHz, {row['power_w']:.0f} W" if "clock_mhz" in row else ""
        print(
            f"{row['new']:,} new at {row['start']:,}, {row['decoding']} decoding, for {row['seconds']:.1f} s: "
            f"{row['first_ms']:.2f} ms at first, {row['last_ms']:.2f} at last{card}"
        )
    for row in found["profile"]:
        print(
            f"{row['new']:,} new at {row['start']:,}, {row['decoding']} decoding: {row['kernels_ms']:.2f} ms of kernels"
        )
        for kernel in row["kernels"]:
            print(f"  {kernel['ms']:8.3f} ms {kernel['launches']:6.1f} x  {kernel['name'][:100]}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("--model", help="random:qwen3-8b on a GPU, smollm2 on a CPU")
    parser.add_argument("--no-profile", action="store_true", help="only the steps one by one")
    parser.add_argument("--seconds", type=float, default=SUSTAINED_S, help="how long a step is sustained")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = find_device(asked.device)
    plan = SMALL if device.type == "cpu" else GPU
    if asked.no_profile:
        plan = Plan(plan.steps, (), plan.slots, plan.step_tokens, plan.width)
    model = load_model(asked.model or ("smollm2" if device.type == "cpu" else "random:qwen3-8b"), device=device)
    document = {
        "schema_version": SCHEMA_VERSION,
        "machine": machine(device),
        "model": model.model_id,
        "measured_unix_s": int(time.time()),
        **measure(model, plan, seconds=asked.seconds),
    }
    show(document)
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
