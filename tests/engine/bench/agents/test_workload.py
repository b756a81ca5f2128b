from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.bench.agents.tool_times import REAL, quantile, real_tools
from kvtrace.engine.bench.agents.workload import (
    COLUMNS,
    Shape,
    ToolCall,
    closed_loop,
    read_sessions,
)
from kvtrace.engine.errors import ConfigError

SHARED = Path(__file__).resolve().parents[5] / "shared" / "workloads" / "tracelab_multi_session_large.csv"
HEADER = ",".join(COLUMNS)


def one_second(agent: int, turn: int) -> ToolCall:
    return ToolCall("tool", 1.0)


def write(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "sessions.csv"
    path.write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")
    return path


def test_agents_of_a_closed_loop_return_as_often_as_asked_and_end_without_a_tool() -> None:
    plans = closed_loop(Shape(agents=3, prompt_tokens=50, returns=2, generated_tokens=8, new_tokens=5), one_second, 1)
    assert [turn.new_tokens for turn in plans[0].turns] == [50, 5, 5]
    assert [turn.call is None for turn in plans[2].turns] == [False, False, True]
    assert len({plan.name for plan in plans}) == 3


@given(st.integers(0, 99), st.integers(0, 4))
def test_token_ids_depend_on_seed_run_agent_and_turn_alone(seed: int, turn: int) -> None:
    shape = Shape(agents=2, prompt_tokens=20, new_tokens=20)
    first, again = (closed_loop(shape, one_second, seed, "0") for _ in range(2))
    other_run = closed_loop(shape, one_second, seed, "1")
    assert first[0].new_ids(turn) == again[0].new_ids(turn)
    assert first[0].new_ids(turn) != first[1].new_ids(turn)
    assert first[0].new_ids(turn) != other_run[0].new_ids(turn)


def test_sessions_of_a_file_keep_their_rounds_and_waits(tmp_path: Path) -> None:
    path = write(tmp_path, "a,250,1,30,7,3,900", "a,100,0,0,20,10,400", "b,0,0,0,5,5,100")
    first, second = read_sessions(path)
    assert first.starts_s == 0.1
    assert [(turn.new_tokens, turn.generated_tokens) for turn in first.turns] == [(20, 10), (7, 3)]
    assert [turn.call and turn.call.seconds for turn in first.turns] == [0.4, None]
    assert [turn.call for turn in second.turns] == [None]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("a,0,0,0,x,1,1",), "line 2"),
        (("a,0,0,0,1,1,1", "a,0,1,0,0,1,1"), "line 3"),
        (("a,0,0,0,1,1,-1",), "line 2"),
        (("a,0,0,0,1",), "line 2"),
        (("a,0,0,0,nan,1,1",), "line 2"),
        (("a,0,0,0,1,1,inf",), "line 2"),
        ((), "no sessions"),
    ],
)
def test_faulty_session_file_is_refused_with_the_place(rows: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sessions(write(tmp_path, *rows))


def test_session_file_without_a_column_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "sessions.csv"
    path.write_text("session_id,arrival_time\na,0\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="output_len"):
        read_sessions(path)


def test_real_session_file_is_read_whole() -> None:
    if not SHARED.exists():
        pytest.skip("no real workload here")
    plans = read_sessions(SHARED)
    assert len(plans) == 48
    assert sum(len(plan.turns) for plan in plans) == 303


@given(st.sampled_from(sorted(REAL)), st.floats(0, 1), st.floats(0, 1))
def test_longer_calls_are_rarer(tool: str, one: float, other: float) -> None:
    known = REAL[tool][1]
    low, high = sorted((one, other))
    assert quantile(known, low) <= quantile(known, high) * (1 + 1e-12)


def test_real_tools_have_the_quantiles_they_were_made_from() -> None:
    calls = [real_tools(7)(agent, turn) for agent in range(400) for turn in range(20)]
    reads = sorted(call.seconds for call in calls if call.tool == "Read")
    assert len(reads) / len(calls) == pytest.approx(4555 / 17948, abs=0.02)
    assert reads[len(reads) // 2] == pytest.approx(0.043, rel=0.25)
    assert max(call.seconds for call in calls) <= 60
