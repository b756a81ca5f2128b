"""Trajectories without instants give lengths and a sentence, those with instants a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import NoDataError
from kvtrace.analysis.testing import at_ns

from .support import BEGAN, calls, iso, records, report, states, write_document, write_rows

STEPS = [
    {"action": "open a.py", "observation": "", "thought": "", "execution_time": 0.25},
    {"action": "", "observation": "", "thought": "", "execution_time": 1.5},
    {"action": "submit", "observation": "", "thought": "", "execution_time": None},
]


def test_lengths_without_instants_are_no_figure(tmp_path: Path) -> None:
    path = write_document(tmp_path / "t.traj", {"trajectory": STEPS, "history": []})
    with pytest.raises(NoDataError, match=r"no instants, only lengths of tool calls: 2 calls of 1\.750 s"):
        report(path)
    assert {record.confidence for record in records(path)[0]} == {"duration_only"}


def test_lengths_without_instants_are_listed_beside_a_timeline(tmp_path: Path) -> None:
    write_document(tmp_path / "a.traj", {"trajectory": STEPS, "history": []})
    rows = [{"role": "system"}, message("user", 0), message("assistant", 2), message("user", 5)]
    write_document(tmp_path / "b.traj.json", {"messages": rows, "trajectory_format": "mini-swe-agent-1.1"})
    found = report(tmp_path)
    assert [(tool.tool, tool.total_s) for tool in found.tools] == [("bash", 3), ("tool", 1.5), ("open", 0.25)]
    assert found.pooled.tool_calls == 1
    assert found.pooled.anomalies.untimed == 2


def message(role: str, at: float, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": "", "extra": {"timestamp": BEGAN.timestamp() + at, **extra}}


def test_mini_trajectory_is_differences_of_neighbours(tmp_path: Path) -> None:
    usage = {"usage": {"prompt_tokens": 40, "completion_tokens": 6}}
    rows = [
        {"role": "system", "content": ""},
        message("user", 0),
        message("assistant", 4, response=usage, actions=[{"command": "ls"}]),
        message("tool", 9),
        message("assistant", 12, actions=[]),
        message("user", 13),
        message("assistant", 15),
        {"role": "exit", "content": "", "extra": {"timestamp": "?"}},
    ]
    path = write_document(tmp_path / "m.json", {"messages": rows, "info": {"mini_version": "2"}})
    (agent,) = report(path).agents
    assert (agent.tool_calls, agent.open_calls, agent.model_calls) == (2, 0, 3)
    assert states(agent) == (15, 4 + 3 + 2, 5, 0)
    assert records(path)[0][0].input_tokens in (40, None)
    assert any("turns" in limit for limit in report(path).sources[0].cannot_show)


def test_submission_of_a_finished_mini_run_is_not_open(tmp_path: Path) -> None:
    # As version 2.4.6 writes it: neither the prompts nor the last word bear an instant.
    messages = [
        {"role": "system", "content": ""},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "make"}], "timestamp": at_ns(0) / 1e9}},
        {"role": "tool", "content": "", "extra": {"returncode": 0, "timestamp": at_ns(4) / 1e9}},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "echo"}], "timestamp": at_ns(6) / 1e9}},
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}},
    ]
    document = {"messages": messages, "trajectory_format": "mini-swe-agent-1.1", "info": {"mini_version": "2.4.6"}}
    found = report(write_document(tmp_path / "m.json", document))
    assert (found.pooled.open_calls, found.pooled.tool_calls) == (0, 2)
    assert (found.pooled.blocked_s, found.pooled.generating_s) == (4, 2)
    limits = found.sources[0].cannot_show
    assert len(limits) == len(set(limits))
    assert any("hands the answer in" in limit for limit in limits)


def test_mini_trajectory_without_instants_gives_a_sentence(tmp_path: Path) -> None:
    path = write_document(
        tmp_path / "m.json", {"messages": [{"role": "user", "content": ""}], "trajectory_format": "1"}
    )
    with pytest.raises(NoDataError, match="without instants"):
        report(path)


def test_other_documents_are_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.jsonl", [{"trajectory_format": "1"}, [iso(0)]])
    assert [skip.why for skip in records(path)[1].skips] == ["no trajectory and no messages"] * 2
    assert calls(path) == []
