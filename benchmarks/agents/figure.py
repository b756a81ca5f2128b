"""The figure and the tables of docs/proof.md from the files that ``run.py`` wrote.

``python benchmarks/agents/figure.py [--svg FILE] [--table] [--merge FILE] [RESULTS...]``: RESULTS are
``benchmarks/results/agents-*.json`` of real cards unless given. The figure shows one seed for every engine, since another seed is other
work; the table shows medians over the seeds and, in brackets, the least and greatest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from svg import Line, Panel, picture

from kvtrace.tui.bench_cells import (
    Group,
    Json,
    Middle,
    add_runs,
    against,
    derive,
    groups_of,
    merged,
    read_runs,
    served,
)

RESULTS: Final = Path(__file__).parents[1] / "results"
MODELS: Final = ("agents-simulated.json", "agents-article-model.json")  # not runs: what a model of a card says
NAMES: Final = {
    ("kvtrace", "auto"): "kvtrace",
    ("kvtrace", "swap"): "kvtrace, swap",
    ("kvtrace", "eager"): "kvtrace, eager",
    ("kvtrace", "recompute"): "kvtrace without swap",
    ("vllm-plain", None): "vLLM",
    ("vllm-offload", None): "vLLM, offload",
    ("vllm-offload1", None): "vLLM, offload on the old runner",
    ("vllm-simple", None): "vLLM, best offload",
    ("transformers", None): "transformers",
}
KINDS: Final = {
    "kvtrace": 0,
    "kvtrace without swap": 1,
    "vLLM": 2,
    "vLLM, best offload": 3,
    "vLLM, offload": 3,
    "vLLM, offload on the old runner": 3,
    "transformers": 4,
}
_IDEAL: Final = "KV that moves for free"
_BOUND: Final = "1/(1-b), or agents over slots"
_SIZE: Final = (330.0, 270.0)
_MISSING: Final = "–"


def name_of(group: Group) -> str:
    """Engine and policy for people."""
    cell = group.cell
    return NAMES.get((cell["engine"], cell["policy"]), f"{cell['engine']} {cell['policy'] or ''}".strip())


def figure(runs: Sequence[Json], seed: int, tool: str) -> str:
    """Turns a second and the first token against the number of agents, and the multiple of steady runs if there are enough.

    Raises:
        ValueError: there are no closed loops of that seed.
    """
    groups = groups_of(run for run in runs if (run["cell"]["tool"], run["cell"]["seed"]) == (tool, seed))
    groups = tuple(group for group in groups if group.whole)
    closed = [group for group in groups if _closed(group, tool)]
    if not closed:
        raise ValueError(f"no closed loops with seed {seed} and tool times {tool}")
    lines = _lines(closed)
    # What would be ideal is the same whoever was measured.
    anybody = sorted({group.agents: group for group in closed}.values(), key=lambda group: group.agents)
    rates = [Line(name, _points(line, "turns_per_s"), _kind(name)) for name, line in lines.items()]
    firsts = [Line(name, _points(line, "return_ttft_s", "p50", scale=1e3), _kind(name)) for name, line in lines.items()]
    ideal = Line(_IDEAL, _points(anybody, "ideal_turns_per_s"), 5, "dashed")
    ideal_first = Line(_IDEAL, _points(anybody, "ideal_return_ttft_p50_s", scale=1e3), 5, "dashed")
    panels = [
        Panel("turns/s", "agents", (ideal, *rates), size=_SIZE),
        Panel("first token of a return, median, ms", "agents", (ideal_first, *firsts), log=True, size=_SIZE),
        *_multiples([group for group in groups if group.cell["steady_s"] is not None], groups),
    ]
    return picture(panels, "Turns a second and first tokens against the number of agents on one card")


def _multiples(steady: Sequence[Group], groups: Sequence[Group]) -> list[Panel]:
    """Turns a second over those of agents that fit, without swap, where finished agents are replaced."""
    told = [(group, derive(group, groups)) for group in steady]
    known = sorted(
        (group.agents, one.measured_multiple, one.queued_multiple, one.ideal_multiple, one.ceiling_multiple)
        for group, one in told
        if group.cell["policy"] == "auto" or group.agents <= group.cell["slots"]
    )
    known = [row for row in known if None not in row]
    if len(known) < 3:  # one point beside the one that all are held against shows no course
        return []
    slots = steady[0].cell["slots"]

    def points(index: int) -> tuple[tuple[float, float], ...]:
        return tuple((float(row[0]), float(row[index] or 0)) for row in known)

    bound = tuple((float(row[0]), min(row[0] / slots, float(row[4] or 0))) for row in known)
    lines = (
        Line(_BOUND, bound, 5, "dotted"),
        Line("1/(1-b) with queueing", points(2), 4, "dashed"),
        Line(_IDEAL, points(3), 5, "dashed"),
        Line("kvtrace", points(1), 0),
    )
    return [Panel(f"turns/s ÷ those of {slots} agents, steady", "agents", lines, size=_SIZE)]


def _kind(name: str) -> int:
    return KINDS.get(name, 5)


def _closed(group: Group, tool: str) -> bool:
    return group.cell["steady_s"] is None and group.cell["tool"] == tool


def _lines(groups: Iterable[Group]) -> dict[str, list[Group]]:
    lines: dict[str, list[Group]] = {}
    for group in groups:
        lines.setdefault(name_of(group), []).append(group)
    return {name: sorted(line, key=lambda group: group.agents) for name, line in lines.items()}


def _points(line: Sequence[Group], *path: str, scale: float = 1.0) -> tuple[tuple[float, float], ...]:
    values = ((float(group.agents), group.median(*path)) for group in line)
    return tuple((agents, value * scale) for agents, value in values if value)


def tables(runs: Sequence[Json]) -> str:
    """Everything as Markdown: closed loops, steady runs, agents served, and ``auto`` against ``eager``."""
    groups = groups_of(runs)
    parts = []
    for tool in dict.fromkeys(group.cell["tool"] for group in groups):
        closed = [group for group in groups if _closed(group, tool)]
        steady = [group for group in groups if group.cell["steady_s"] is not None and group.cell["tool"] == tool]
        parts += [f"Tool times {tool}, all agents begin at once", *_closed_table(closed, groups)] if closed else []
        parts += [f"Tool times {tool}, finished agents replaced", *_steady_table(steady, groups)] if steady else []
        parts += [*_served(closed, groups), *_policies(closed)]
    return "\n".join(parts)


def _closed_table(closed: Sequence[Group], groups: Sequence[Group]) -> list[str]:
    head = (
        "engine", "agents", "seeds", "turns/s", "÷ ideal", "÷ no swap", "multiple", "ideal's",
        "decoding", "return TTFT p50 ms", "p95", "within 2× resident", "prefilled twice",
    )  # fmt: skip
    rows = []
    for name, line in _lines(closed).items():
        for group in line:
            told = derive(group, groups)
            rows.append(
                (
                    name,
                    str(group.agents),
                    ", ".join(map(str, group.seeds)),
                    _spread(group.middle("turns_per_s"), 2),
                    _spread(group.middle("turns_per_s_of_ideal"), 3),
                    _text(told.of_no_swap, 2),
                    _text(told.measured_multiple, 2),
                    _text(told.ideal_multiple, 2),
                    _spread(group.middle("decoding_mean"), 1),
                    _spread(group.middle("return_ttft_s", "p50"), 0, 1e3),
                    _spread(group.middle("return_ttft_s", "p95"), 0, 1e3),
                    _text(told.served_share, 2),
                    _text(group.median("reprefilled_tokens"), 0),
                )
            )
    return _markdown(head, rows)


def _steady_table(steady: Sequence[Group], groups: Sequence[Group]) -> list[str]:
    head = (
        "engine", "agents", "turns/s", "÷ ideal", "multiple", "ideal's", "predicted with queueing", "1/(1-b)",
        "of predicted", "decoding", "return TTFT p50 ms",
    )  # fmt: skip
    rows = []
    for name, line in _lines(steady).items():
        for group in line:
            told = derive(group, groups)
            known = told.measured_multiple is not None and told.queued_multiple is not None
            rows.append(
                (
                    name,
                    str(group.agents),
                    _spread(group.middle("turns_per_s"), 2),
                    _spread(group.middle("turns_per_s_of_ideal"), 3),
                    _text(told.measured_multiple, 2),
                    _text(told.ideal_multiple, 2),
                    _text(told.queued_multiple, 2),
                    _text(told.ceiling_multiple, 2),
                    _text((told.measured_multiple or 0) / (told.queued_multiple or 1) if known else None, 2),
                    _text(group.median("decoding_mean"), 1),
                    _text(group.median("return_ttft_s", "p50"), 0, 1e3),
                )
            )
    return _markdown(head, rows)


def _served(closed: Sequence[Group], groups: Sequence[Group]) -> list[str]:
    lines = []
    for name, line in _lines(closed).items():
        if len(line) > 1 and (found := served(line, groups)):
            bound = "" if found.of_bound is None else f", {found.of_bound:.2f} of slots × 1/(1-b)"
            lines.append(
                f"{name}: within twice the resident first token up to {found.agents} agents as run, {found.between:.0f} "
                f"between the numbers run{bound}"
            )
    return [*lines, ""] if lines else []


def _policies(closed: Sequence[Group]) -> list[str]:
    """``auto`` against ``eager`` where both ran."""
    lines = []
    for group in closed:
        for other in closed:
            if (group.cell["policy"], other.cell["policy"]) == ("auto", "eager") and group.agents == other.agents:
                shares = ", ".join(f"{name} {_text(value, 2)}" for name, value in against(group, other).items())
                lines.append(f"auto ÷ eager at {group.agents} agents: {shares}")
    return [*lines, ""] if lines else []


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return ["", lines[0], "|" + "---|" * len(head), *lines[1:], ""]


def _text(value: float | None, digits: int, scale: float = 1.0) -> str:
    return _MISSING if value is None else f"{value * scale:,.{digits}f}"


def _spread(middle: Middle | None, digits: int, scale: float = 1.0) -> str:
    if middle is None:
        return _MISSING
    text = _text(middle.median, digits, scale)
    if middle.low == middle.high:
        return text
    return f"{text} ({_text(middle.low, digits, scale)}–{_text(middle.high, digits, scale)})"


def _read(path: Path) -> list[Json]:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    return read_runs(path)


def main() -> None:
    """Read, merge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--svg", type=Path, help="write the figure")
    parser.add_argument(
        "--table", action="store_true", help="print the tables; the default where nothing else is asked"
    )
    parser.add_argument("--merge", type=Path, help="add all runs to this file")
    parser.add_argument("--seed", type=int, default=1, help="of the figure")
    parser.add_argument("--tool", default="exp:1.868", help="tool times of the figure")
    asked = parser.parse_args()
    files = asked.results or [path for path in sorted(RESULTS.glob("agents-*.json")) if path.name not in MODELS]
    try:
        runs = merged(*(_read(path) for path in files))
        if asked.merge is not None:
            add_runs(asked.merge, runs)
        if asked.svg is not None:
            asked.svg.write_text(figure(runs, asked.seed, asked.tool), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    if asked.table or (asked.merge is None and asked.svg is None):
        print(tables(runs))


if __name__ == "__main__":
    main()
