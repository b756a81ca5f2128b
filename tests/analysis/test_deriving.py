"""Figures from layers are the figures derived from all spans at once, whatever is added, and little is derived anew."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvtrace.analysis import NoDataError, ReadOptions, Report, deriving, intake, layers, open_study
from kvtrace.analysis.evidence import Host
from kvtrace.analysis.layers import Shelf
from kvtrace.analysis.normal import Process
from kvtrace.analysis.progress import Progress, Quiet
from kvtrace.analysis.testing import FixedHost, otlp_line, otlp_span
from kvtrace.tracer import attributes as names

from .otel_traces import as_line, as_span
from .test_timeline_property import family

TABLES = (
    "* from spans",
    "variant, agent, state, start_ns, stop_ns from timeline",
    "agent, start_ns, stop_ns, tokens from contexts",
)
Found = tuple[Report, list[list[tuple[Any, ...]]]]


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "_WORTH_KEEPING", 0)
        yield patch


class Trusting(Quiet):
    """A listener to whom it is news that the cache is of no use."""

    def say(self, sentence: str) -> None:
        raise AssertionError(sentence)


def measured(
    paths: Sequence[Path],
    folder: Path,
    host: Host,
    kept: bool,
    progress: Progress = Trusting(),  # noqa: B008 - has no state
) -> Found:
    """A report, and the tables that pictures are drawn from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "_WORTH_KEEPING", 0 if kept else 1 << 60)
        with open_study(paths, host=host, reading=ReadOptions(cache_folder=folder, progress=progress)) as study:
            rows = [study.connection.execute(f"select {columns} order by all").fetchall() for columns in TABLES]
            return study.report, rows


def lines_of_families(random: Random, count: int) -> list[str]:
    """Spans of families of agents; processes, dead and alive, are of several families and files."""
    lines = []
    for number in range(count):
        for record in family(random, number):
            process = {names.HOST_NAME: "h", names.PROCESS_PID: number % 5, names.PROCESS_START: 1, names.RUN_ID: "r"}
            resource = process if random.random() < 0.7 else {}
            span = as_span(record)
            lines.append(as_line(type(span)(**{**{f: getattr(span, f) for f in span.__slots__}, "resource": resource})))
    random.shuffle(lines)
    return lines


@dataclass(frozen=True)
class Later:
    """A host at an instant among those of the families' spans."""

    now_ns: int
    running: frozenset[int]

    def unix_ns(self) -> int:
        """Now."""
        return self.now_ns

    def is_running(self, process: Process) -> bool:
        """Whether the process is one of ``running``."""
        return process.pid in self.running


@settings(max_examples=2, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 2**32))
def test_layers_change_no_figure(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    random = Random(seed)
    folder = tmp_path_factory.mktemp("layers")
    lines = lines_of_families(random, 15)
    paths = [folder / f"{number}.jsonl" for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deriving, "_CHUNK_ROWS", random.choice((20, 1000)))
        patch.setattr(deriving, "_MOST_LAYERS", random.choice((3, 24)))
        begin = 0
        for end in (len(lines) // 2, len(lines) - 7, len(lines) - 7, len(lines)):
            for line in lines[begin:end]:
                with random.choice(paths).open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
            for path in paths:
                path.touch()
                os.utime(path, ns=(1030, 1030))
            begin = end
            host = Later(1040 + random.randrange(2), frozenset(random.sample(range(5), 2)))
            asked = sorted(random.sample(paths, 3 if random.random() < 0.8 else 2))
            assert measured(asked, folder / "cache", host, kept=True) == measured(
                asked, folder / "cache", host, kept=False
            )


def agents_lines(agents: range, turn: int = 0) -> str:
    """A turn of each agent: a model call and a tool call."""
    return "".join(
        otlp_line([otlp_span("chat", turn * 9, turn * 9 + 2, span=turn * 2 + 1, trace=agent + 1, agent=f"a{agent}")])
        + "\n"
        + otlp_line(
            [
                otlp_span(
                    "execute_tool", turn * 9 + 2, turn * 9 + 8, span=turn * 2 + 2, trace=agent + 1, agent=f"a{agent}"
                )
            ]
        )
        + "\n"
        for agent in agents
    )


def derived_agents(patch: pytest.MonkeyPatch) -> list[int]:
    """How many agents are derived at a time, from now on."""
    counts: list[int] = []
    add = Shelf.add

    def counting(shelf: Shelf, chunk: int) -> None:
        counts.extend(shelf._connection.execute("select count(*) from facts").fetchall()[0])
        add(shelf, chunk)

    patch.setattr(Shelf, "add", counting)
    return counts


def test_only_agents_that_files_were_added_to_are_derived_again(
    tmp_path: Path, cache_folder: Path, patch: pytest.MonkeyPatch
) -> None:
    counts = derived_agents(patch)
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text(agents_lines(range(50)))
    measured([old], cache_folder, FixedHost(), kept=True)
    measured([old], cache_folder, FixedHost(), kept=True)
    assert counts == [50]
    new.write_text(agents_lines(range(48, 53), turn=1))
    found, _ = measured([old, new], cache_folder, FixedHost(), kept=True)
    assert counts == [50, 5]
    assert (found.pooled.agents, found.pooled.tool_calls) == (53, 55)
    with old.open("a") as file:
        file.write(agents_lines(range(1), turn=1))
    measured([old, new], cache_folder, FixedHost(), kept=True)
    measured([old], cache_folder, FixedHost(), kept=True)
    assert sum(counts) <= 50 + 5 + 53


def test_agents_in_one_trace_are_derived_together(
    tmp_path: Path, cache_folder: Path, patch: pytest.MonkeyPatch
) -> None:
    counts = derived_agents(patch)
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text(agents_lines(range(6)))
    measured([old], cache_folder, FixedHost(), kept=True)
    linking = otlp_span("invoke_agent", 0, 20, span=9, trace=99, agent="a1", attributes={names.PARENT_AGENT_ID: "a2"})
    new.write_text(otlp_line([linking]) + "\n")
    found, _ = measured([old, new], cache_folder, FixedHost(), kept=True)
    assert counts == [6, 2]
    assert {agent.agent: agent.parent for agent in found.agents}["a1"] == "a2"


def test_same_traces_in_other_parts_are_another_group(
    tmp_path: Path, cache_folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """Two traces in the same two parts each: what tells groups apart must not cancel out."""
    del patch
    paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
    for number, path in enumerate(paths):
        spans = [
            otlp_span("execute_tool", number * 9, number * 9 + 2 + number, span=number + 1, trace=trace, agent="a")
            for trace in (1, 2)
        ]
        path.write_text("".join(otlp_line([span]) + "\n" for span in spans))
    for asked in (paths[:2], paths[2:], paths[:2]):
        kept, direct = (measured(asked, cache_folder, FixedHost(), kept=kept) for kept in (True, False))
        assert kept == direct


def test_layers_that_are_damaged_or_gone_cost_no_figure(
    tmp_path: Path, cache_folder: Path, patch: pytest.MonkeyPatch
) -> None:
    del patch
    path = tmp_path / "a.jsonl"
    path.write_text(agents_lines(range(5)))
    first = measured([path], cache_folder, FixedHost(), kept=True)
    for file in cache_folder.rglob("timeline.parquet"):
        file.write_bytes(b"damaged")
    assert measured([path], cache_folder, FixedHost(), True, Quiet())[0] == first[0]
    for file in cache_folder.rglob("facts.parquet"):
        file.unlink()
    assert measured([path], cache_folder, FixedHost(), True, Quiet())[0] == first[0]


def test_files_without_a_call_give_the_usual_sentence(
    tmp_path: Path, cache_folder: Path, patch: pytest.MonkeyPatch
) -> None:
    del patch
    nothing, spans, other = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    nothing.write_text("no spans here")
    spans.write_text(otlp_line([otlp_span("embeddings", 0, 1, span=1)]) + "\n")
    other.write_text('{"resourceSpans": []}\n')
    for path, reason in ((nothing, "no spans"), (spans, "no tool call"), (other, "no spans")):
        for _ in range(2):
            with pytest.raises(NoDataError, match=reason):
                measured([path], cache_folder, FixedHost(), kept=True)
    with pytest.raises(NoDataError, match="no tool call"):
        measured([spans, other], cache_folder, FixedHost(), kept=True)


def test_what_was_not_used_lately_goes(tmp_path: Path, cache_folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layers, "_MOST_SETS", 1)
    patch.setattr(layers, "_ORPHAN_AGE_S", -1)
    for name, agents in (("a", range(3)), ("b", range(3, 7))):
        (tmp_path / f"{name}.jsonl").write_text(agents_lines(agents))
        found, _ = measured([tmp_path / f"{name}.jsonl"], cache_folder, FixedHost(), kept=True)
        assert found.pooled.agents == len(agents)
    (folder,) = cache_folder.glob(f"{layers.FOLDER_PREFIX}*")
    assert [len(list((folder / each).iterdir())) for each in ("sets", "layers")] == [1, 1]
    found, _ = measured([tmp_path / "a.jsonl"], cache_folder, FixedHost(), kept=True)
    assert found.pooled.agents == 3
