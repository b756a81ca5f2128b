"""Real transcripts of other people's agents, where they are there, against an independent sweep over the whole file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.analysis import NoDataError
from kvtrace.analysis.report import Report

from .support import report as report_of

TRACES = Path(__file__).parents[3].parent / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not here")


def report(name: str) -> Report:
    return report_of(TRACES / name)


@pytest.mark.parametrize(
    ("name", "tool_calls", "tool_sum", "tool_union", "llm_union", "wall", "blocked", "generating"),
    [
        ("claude-code/entire-3e73767733.jsonl", 6, 132.033, 69.712, 26.924, 99.778, 67.638, 26.924),
        ("codex-rollout/agentcmd-2025-09-24T20-12.jsonl", 16, 2.1, 2.1, 129.328, 248.904, 2.1, 129.328),
        ("gemini-cli/entire-2b9748b105.json", 9, 19.515, 19.515, 48.284, 67.8, 19.515, 48.284),
        ("opencode/maestro-run.jsonl", 2, 0.01, 0.01, 1.869, 3.342, 0.01, 1.859),
        ("openhands/basic-gui-mode.json", 4, 31.315, 31.315, 31.837, 81.91, 31.315, 31.837),
    ],
)
def test_figures_of_one_agent_are_the_known_ones(
    name: str,
    tool_calls: int,
    tool_sum: float,
    tool_union: float,
    llm_union: float,
    wall: float,
    blocked: float,
    generating: float,
) -> None:
    found = report(name)
    pooled = found.pooled
    assert (pooled.agents, pooled.tool_calls, pooled.open_calls) == (1, tool_calls, 0)
    assert sum(tool.total_s for tool in found.tools) == pytest.approx(tool_sum, abs=0.001)
    measured = (pooled.tool_union_s, pooled.generating_s, pooled.blocked_s, pooled.generating_state_s)
    assert measured == pytest.approx((tool_union, llm_union, blocked, generating), abs=0.001)
    # A row that follows the last answer (a change of state) may end the sweep's wall clock a moment later.
    assert pooled.wall_s == pytest.approx(wall, abs=0.02)
    assert found.sources[0].skipped == 0


def test_sub_agents_between_the_rows_have_timelines_of_their_own() -> None:
    main, *subs = report("claude-code/viewer-inline-sidechain.jsonl").agents
    assert main.tool_calls == 13
    measured = (main.tool_union_s, main.generating_s, main.wall_s, main.blocked_s)
    assert measured == pytest.approx((66.696, 83.187, 143.428, 60.241), abs=0.001)
    assert [(sub.parent, sub.tool_calls) for sub in subs] == [(main.agent, 2), (main.agent, 6)]
    assert main.model_elsewhere_s == pytest.approx(sum(sub.generating_s for sub in subs), abs=0.001)


def test_rounds_of_two_sessions_are_two_agents() -> None:
    codex, claude = report("tracelab/round_trace.jsonl").agents
    assert (codex.tool_calls, codex.model_calls) == (10, 9)
    assert (claude.tool_calls, claude.model_calls) == (9, 10)
    assert claude.wall_s == pytest.approx(claude.generating_s + claude.blocked_s + claude.human_s, abs=0.001)


def test_unreadable_lines_are_named_and_the_rest_is_read() -> None:
    found = report("malformed/claude-snatch-malformed.jsonl")
    assert found.pooled.tool_calls == 0
    assert found.pooled.model_calls == 1
    assert [skip.line for skip in found.sources[0].skipped_lines] == [2, 3]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no-timestamps/codex-exec-events.json", "codex exec --json carry no instants"),
        ("swe-agent/test-repo-1c2844.json", r"5 calls of 1\.633 s"),
    ],
)
def test_sources_without_instants_give_a_sentence(name: str, why: str) -> None:
    with pytest.raises(NoDataError, match=why):
        report(name)
