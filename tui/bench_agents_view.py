"""``kvtrace bench agents`` for people: a bar while it runs, a table afterwards, a plot on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .console import PipedConsole
from .exits import CommandError
from .format import bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from kvtrace.engine.bench.agents.client import TurnRecord

    from .bench_cells import Derived, Group


_NOTHING: Final = "–"


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


def show(groups: Sequence[Group], known: Sequence[Group], resident_ttft_s: float | None = None) -> None:
    """Print one column a group of runs; with several seeds the median, and the least and greatest of what matters most.

    ``known`` are the groups to compare with, these among them.
    """
    from .bench_cells import derive

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for group in groups:
        table.add_column(counted(group.agents, "agent"), justify="right")
    rows = [(title, [cell(group) for group in groups]) for title, cell in _measured()]
    derived = [derive(group, known, resident_ttft_s) for group in groups]
    rows += [(title, [cell(one) for one in derived]) for title, cell in _derived()]
    for title, cells in rows:
        if any(cell != _NOTHING for cell in cells):
            table.add_row(title, *cells)
    console = PipedConsole()
    console.print(table)
    if not all(run["token_ids_returned"] for group in groups for run in group.runs):
        console.print("The server returns no token ids: what an agent generated could not be found in a cache again.")


def _measured() -> list[tuple[str, Callable[[Group], str]]]:
    """Rows that a group's own runs give."""
    return [
        ("turns/s", lambda group: _spread(group, _number, "turns_per_s")),
        ("… of a card where KV moves for free", lambda group: _spread(group, _share, "turns_per_s_of_ideal")),
        ("returns/s in the busy window", lambda group: _number(group.median("returns_per_s_busy"))),
        ("agents decoding in it", lambda group: _spread(group, _number, "decoding_mean")),
        ("b", lambda group: _number(group.median("b"))),
        ("return: first token, p50", lambda group: _spread(group, _time, "return_ttft_s", "p50")),
        ("… where KV moves for free", lambda group: _time(group.median("ideal_return_ttft_p50_s"))),
        ("… of it waiting for a slot", lambda group: _time(group.median("return_queued_s", "p50"))),
        ("… of it restoring", lambda group: _time(group.median("return_restoring_s", "p50"))),
        ("… of it computing and on the way", lambda group: _time(group.median("return_starting_s", "p50"))),
        ("return: first token, p95", lambda group: _time(group.median("return_ttft_s", "p95"))),
        ("return: first token, p99", lambda group: _time(group.median("return_ttft_s", "p99"))),
        ("new prompt: first token, p50", lambda group: _time(group.median("first_ttft_s", "p50"))),
        ("time a token, p50", lambda group: _time(group.median("tpot_s", "p50"))),
        ("time a token, p99", lambda group: _time(group.median("tpot_s", "p99"))),
        ("prompt tokens", lambda group: _count(group.median("prompt_tokens"))),
        ("… computed", lambda group: _count(group.median("computed_tokens"))),
        ("… for the second time", lambda group: _count(group.median("reprefilled_tokens"))),
        ("… from host memory", lambda group: _count(group.median("host_tokens"))),
        ("copied to the host", lambda group: _bytes(group.median("moved", "out_bytes"))),
        ("copied back", lambda group: _bytes(group.median("moved", "in_bytes"))),
        ("idle KV out of VRAM, of all byte-seconds", lambda group: _share(group.median("moved", "freed_share"))),
        ("failed", lambda group: _failures(group)),
        ("makespan, or the window of --steady", lambda group: _time(group.median("makespan_s"))),
        ("processor time of this client", lambda group: _share(group.median("client_cpu_share"))),
    ]


def _derived() -> list[tuple[str, Callable[[Derived], str]]]:
    """Rows that need other groups."""
    return [
        ("returns within twice the resident first token", lambda one: _share(one.served_share)),
        ("turns/s ÷ those of agents that fit", lambda one: _number(one.measured_multiple)),
        ("… where KV moves for free", lambda one: _number(one.ideal_multiple)),
        ("… predicted with queueing", lambda one: _number(one.queued_multiple)),
        ("… bound 1/(1-b), b of agents that fit", lambda one: _number(one.ceiling_multiple)),
        ("… 1/(1-b), b as measured here", lambda one: _number(one.own_multiple)),
        ("turns/s ÷ no swap", lambda one: _number(one.of_no_swap)),
    ]


def _spread(group: Group, text: Callable[[float | None], str], *path: str) -> str:
    middle = group.middle(*path)
    if middle is None or len(group.runs) == 1:
        return text(None if middle is None else middle.median)
    return f"{text(middle.median)} ({text(middle.low)}–{text(middle.high)})"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0%}"


def _count(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"


def _time(value: float | None) -> str:
    return _NOTHING if value is None else seconds_text(value)


def _bytes(value: float | None) -> str:
    return _NOTHING if value is None else bytes_text(int(value))


def _failures(group: Group) -> str:
    failed = sum(run["failed"] for run in group.runs)
    return str(failed) if failed else _NOTHING


def check_plot(path: Path) -> None:
    """See that :func:`draw` could write there, before anything is measured.

    Raises:
        CommandError: matplotlib is missing, knows no such kind of file, or the file cannot be written.
    """
    from .bench_cells import check_writable

    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise CommandError("matplotlib is missing: pip install 'kvtrace[plot]'") from error
    kind, kinds = path.suffix.removeprefix(".").lower(), FigureCanvasBase.get_supported_filetypes()
    if kind and kind not in kinds:
        raise CommandError(f"cannot write {path}: a plot ends in .{', .'.join(sorted(kinds))}")
    try:
        check_writable(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error}") from error


def draw(groups: Sequence[Group], path: Path) -> None:
    """Plot turns a second, with the ideal drawn in, and the returns' first token against the number of agents.

    Raises:
        CommandError: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise CommandError("matplotlib is missing: pip install 'kvtrace[plot]'") from error
    numbers = [group.agents for group in groups]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rate, first = figure.subplots(1, 2)
    rate.plot(numbers, [group.median("turns_per_s") for group in groups], "o-", label="measured")
    rate.plot(numbers, [group.median("ideal_turns_per_s") for group in groups], "k--", label="KV moves for free")
    rate.set(xlabel="agents", ylabel="turns/s", ylim=(0, None))
    for name in ("p50", "p95"):
        seconds = [group.median("return_ttft_s", name) for group in groups]
        first.plot(numbers, [None if value is None else value * 1e3 for value in seconds], "o-", label=name)
    first.set(xlabel="agents", ylabel="first token of a return, ms", yscale="log")
    for axes in (rate, first):
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot write {path}: {error}") from error
