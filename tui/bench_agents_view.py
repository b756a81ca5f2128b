"""``kvtrace bench agents`` for people: a bar while it runs, a table afterwards, a plot on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .console import PipedConsole
from .exits import CommandError
from .format import bytes_text, seconds_text

if TYPE_CHECKING:
    from kvtrace.engine.bench.agents.client import TurnRecord
    from kvtrace.engine.bench.agents.figures import Figures

    from .commands.bench_agents import Run


class TurnBar:
    """Counts turns on stderr, and says the first failure as it happens."""

    def __init__(self, title: str, total: int | None) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("turns"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=total)
        self._failed = False

    def __enter__(self) -> TurnBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def turn(self, record: TurnRecord) -> None:
        """Count one turn."""
        self._bar.advance(self._task)
        if record.error is not None and not self._failed:
            self._failed = True
            self._console.print(f"{record.agent}: {record.error}", markup=False, highlight=False)


def show(runs: Sequence[Run]) -> None:
    """Print one column a run."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(f"{run.figures.agents} agents", justify="right")
    for title, cells in _rows(runs):
        if any(cell != "–" for cell in cells):
            table.add_row(title, *cells)
    console = PipedConsole()
    console.print(table)
    if not all(run.figures.token_ids_returned for run in runs):
        console.print("The server returns no token ids: what an agent generated could not be found in a cache again.")


def _rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    figures = [run.figures for run in runs]
    return [
        ("turns/s", [f"{one.turns_per_s:.2f}" for one in figures]),
        ("… of a card where KV moves for free", [_share(run.of_ideal) for run in runs]),
        ("returns/s in the busy window", [_number(one.returns_per_s_busy) for one in figures]),
        ("agents decoding in it", [_number(one.decoding_mean) for one in figures]),
        ("b", [_number(one.b) for one in figures]),
        ("return: first token, p50", [_time(one.return_ttft_s.p50) for one in figures]),
        ("return: first token, p95", [_time(one.return_ttft_s.p95) for one in figures]),
        ("return: first token, p99", [_time(one.return_ttft_s.p99) for one in figures]),
        ("new prompt: first token, p50", [_time(one.first_ttft_s.p50) for one in figures]),
        ("time a token, p50", [_time(one.tpot_s.p50) for one in figures]),
        ("time a token, p99", [_time(one.tpot_s.p99) for one in figures]),
        ("prompt tokens", [f"{one.prompt_tokens:,}" for one in figures]),
        ("… computed", [_count(one.computed_tokens) for one in figures]),
        ("… for the second time", [_count(one.reprefilled_tokens) for one in figures]),
        ("… from host memory", [_count(one.host_tokens) for one in figures]),
        ("copied to the host", [_moved(run, "out_bytes") for run in runs]),
        ("copied back", [_moved(run, "in_bytes") for run in runs]),
        (
            "idle KV out of VRAM, of all byte-seconds",
            [_share(run.moved.freed_share if run.moved else None) for run in runs],
        ),
        ("failed", [_failures(one) for one in figures]),
        ("makespan", [seconds_text(one.makespan_s) for one in figures]),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _time(value: float | None) -> str:
    return "–" if value is None else seconds_text(value)


def _moved(run: Run, name: str) -> str:
    return "–" if run.moved is None else bytes_text(getattr(run.moved, name))


def _failures(figures: Figures) -> str:
    return str(figures.failed) if figures.failed else "–"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Plot turns a second, with the ideal drawn in, and the returns' first token against the number of agents.

    Raises:
        CommandError: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise CommandError("matplotlib is missing: pip install 'kvtrace[plot]'") from error
    numbers = [run.figures.agents for run in runs]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rate, first = figure.subplots(1, 2)
    rate.plot(numbers, [run.figures.turns_per_s for run in runs], "o-", label="measured")
    rate.plot(numbers, [run.ideal_turns_per_s for run in runs], "k--", label="KV moves for free")
    rate.set(xlabel="agents", ylabel="turns/s", ylim=(0, None))
    for name in ("p50", "p95"):
        seconds = [getattr(run.figures.return_ttft_s, name) for run in runs]
        first.plot(numbers, [None if value is None else value * 1e3 for value in seconds], "o-", label=name)
    first.set(xlabel="agents", ylabel="first token of a return, ms", yscale="log")
    for axes in (rate, first):
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot write {path}: {error}") from error
