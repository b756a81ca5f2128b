"""What several runs of ``kvtrace bench agents`` say together."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.analysis.capacity import machine_repair
from kvtrace.tui.bench_cells import (
    Group,
    add_runs,
    against,
    check_writable,
    derive,
    groups_of,
    half_named,
    merged,
    nameless,
    read_runs,
    resident_of,
    served,
)


def run(
    agents: int,
    rate: float,
    *,
    policy: str | None = "auto",
    engine: str = "kvtrace",
    seed: int = 1,
    steady_s: float | None = None,
    firsts: tuple[float, ...] = (0.03,),
    b: float = 0.5,
    ideal: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    cell = {"engine": engine, "policy": policy, "agents": agents, "seed": seed, "tool": "exp:1", "steady_s": steady_s}
    ordered = sorted(firsts)
    return {
        "cell": {**cell, "prompt": 60, "returns": 2, "generate": 6, "new": 10, "slots": 8},
        "turns_per_s": rate,
        "ideal_turns_per_s": ideal,
        "return_ttft_s": {"p50": ordered[(len(ordered) - 1) // 2]},
        "return_ttft_all_s": ordered,
        "b": b,
        **more,
    }


POLICIES = ("auto", "recompute")


def of(groups: tuple[Group, ...], agents: int, policy: str | None = "auto") -> Group:
    (found,) = [group for group in groups if (group.agents, group.cell["policy"]) == (agents, policy)]
    return found


def test_runs_that_differ_in_their_seed_alone_are_one_group_with_median_and_spread() -> None:
    groups = groups_of([run(8, 2.0), run(16, 3.0, seed=1), run(16, 5.0, seed=3), run(16, 4.5, seed=2)])
    assert [(group.agents, group.seeds) for group in groups] == [(8, (1,)), (16, (1, 2, 3))]
    middle = groups[1].middle("turns_per_s")
    assert middle is not None
    assert (middle.median, middle.low, middle.high) == (4.5, 3.0, 5.0)


def test_figure_that_one_seed_lacks_has_no_median() -> None:
    (group,) = groups_of([run(8, 2.0, ideal=3.0), run(8, 2.0, seed=2)])
    assert group.median("ideal_turns_per_s") is None
    assert group.median("no", "such") is None


def test_multiples_are_over_the_agents_that_fit_without_swap() -> None:
    groups = groups_of([run(8, 2.5), run(8, 2.0, policy="recompute", b=0.6), run(24, 5.0, b=0.4)])
    told = derive(of(groups, 24), groups)
    assert told.measured_multiple == pytest.approx(2.5)
    assert told.ceiling_multiple == pytest.approx(2.5)
    assert told.own_multiple == pytest.approx(1 / 0.6)
    assert told.queued_multiple == pytest.approx(machine_repair(0.6, 8, 24)[0])


def test_rates_are_compared_on_seeds_that_both_ran() -> None:
    groups = groups_of(
        [run(8, 2.0, seed=1, ideal=2.0), run(16, 3.0, seed=1, ideal=5.0), run(16, 9.0, seed=2), run(16, 9.0, seed=3)]
    )
    told = derive(of(groups, 16), groups)
    assert told.measured_multiple == pytest.approx(1.5)
    assert told.ideal_multiple == pytest.approx(2.5)


def test_no_swap_is_compared_at_the_same_number_of_agents() -> None:
    groups = groups_of([run(16, 4.0), run(16, 2.0, policy="recompute"), run(32, 3.0, policy="recompute")])
    assert derive(of(groups, 16), groups).of_no_swap == pytest.approx(2.0)


def test_returns_count_as_served_within_twice_the_resident_first_token_of_the_same_policy() -> None:
    groups = groups_of(
        [
            run(8, 2.0, firsts=(0.02,)),
            run(8, 2.0, policy="keep", firsts=(9.0,)),
            run(16, 3.0, firsts=(0.01, 0.04, 0.05)),
        ]
    )
    assert derive(of(groups, 16), groups).served_share == pytest.approx(2 / 3)
    assert derive(of(groups, 16), groups, resident_ttft_s=1.0).served_share == 1.0


def test_runs_of_other_work_or_engines_are_no_reference() -> None:
    groups = groups_of([run(8, 2.0, steady_s=30), run(8, 2.0, engine="other", policy=None), run(16, 3.0)])
    told = derive(of(groups, 16), groups)
    assert resident_of(of(groups, 16), groups, own=True) is None
    assert (told.measured_multiple, told.served_share, told.of_no_swap) == (None, None, None)


def test_agents_served_end_where_the_median_first_token_passes_twice_the_resident_one() -> None:
    groups = groups_of([run(8, 1, firsts=(0.03,), b=0.5), run(16, 1, firsts=(0.04,)), run(24, 1, firsts=(0.08,))])
    found = served(groups, groups)
    assert found is not None
    assert found.agents == 16
    assert found.between == pytest.approx(20.0)  # half-way from 0.04 to 0.08 lies 0.06
    assert found.of_bound == pytest.approx(20 / 16)


def test_moved_bytes_and_byte_seconds_are_shares_of_the_other_policys() -> None:
    def moved(out: int, handed: float) -> dict[str, float]:
        return {"out_bytes": out, "in_bytes": out, "freed_byte_s": 1.0, "handed_byte_s": handed}

    lazy, eager = groups_of([run(32, 4, moved=moved(10, 9.0)), run(32, 4, policy="eager", moved=moved(100, 10.0))])
    shares = against(lazy, eager)
    assert shares["moved_bytes"] == pytest.approx(0.1)
    assert shares["handed_byte_s"] == pytest.approx(0.9)


def test_server_that_tells_no_bytes_cannot_be_held_against_another() -> None:
    one, other = groups_of([run(32, 4, moved=None), run(32, 4, policy="eager", moved=None)])
    assert against(one, other)["moved_bytes"] is None


@given(st.lists(st.tuples(st.integers(8, 10), st.integers(1, 3), st.floats(0.1, 9)), max_size=12))
def test_merging_keeps_the_latest_run_of_every_cell(found: list[tuple[int, int, float]]) -> None:
    runs = [run(agents, rate, seed=seed) for agents, seed, rate in found]
    kept = merged(runs[: len(runs) // 2], runs[len(runs) // 2 :])
    latest = {(agents, seed): rate for agents, seed, rate in found}
    assert {(one["cell"]["agents"], one["cell"]["seed"]): one["turns_per_s"] for one in kept} == latest


def test_file_grows_by_cells_and_replaces_those_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "agents.json"
    add_runs(path, [run(8, 1.0), run(16, 2.0)])
    add_runs(path, [run(16, 3.0), run(24, 4.0)])
    assert [one["turns_per_s"] for one in read_runs(path)] == [1.0, 3.0, 4.0]
    assert [item.name for item in path.parent.iterdir()] == ["agents.json"]


@pytest.mark.parametrize("text", ["[]", '{"runs": 3}', json.dumps({"figures": []}), "[" * 100_000])
def test_file_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="holds no runs"):
        read_runs(path)


@pytest.mark.parametrize(
    "damage",
    [
        {"cell": 5},
        {"cell": {"agents": 8, "slots": 8}},
        {"turns_per_s": None},
        {"return_ttft_all_s": None},
        {"return_ttft_all_s": ["x"]},
    ],
)
def test_file_with_a_damaged_run_is_refused_by_its_number(damage: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"schema_version": 2, "runs": [run(8, 1.0), {**run(16, 2.0), **damage}]}), "utf-8")
    with pytest.raises(ValueError, match="number 2 lacks"):
        read_runs(path)


def test_file_of_another_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "later.json"
    path.write_text('{"schema_version": 3, "runs": []}', "utf-8")
    with pytest.raises(ValueError, match="schema version 3, and this kvtrace reads 2"):
        add_runs(path, [run(8, 1.0)])
    assert path.read_text("utf-8") == '{"schema_version": 3, "runs": []}'


def test_run_in_which_requests_failed_replaces_no_whole_one_and_is_compared_with_nothing() -> None:
    whole, failed = run(16, 4.0, failed=0), run(16, 9.0, failed=2)
    assert merged([whole], [failed]) == [whole]
    assert merged([failed], [whole]) == [whole]
    groups = groups_of([run(8, 2.0), failed])
    assert derive(of(groups, 16), groups).measured_multiple is None
    assert derive(of(groups, 16), groups).served_share is None
    groups = groups_of([run(8, 2.0, failed=1), run(16, 4.0)])
    assert resident_of(of(groups, 16), groups, own=True) is None


def test_runs_of_another_model_or_device_are_cells_of_their_own() -> None:
    one = run(8, 1.0, server={"model": "small", "device": "cpu"})
    other = run(8, 2.0, server={"model": "large", "device": "cpu"})
    third = run(16, 3.0, server={"model": "large", "device": "cuda"})
    assert merged([one], [other]) == [one, other]
    groups = groups_of([one, other, third])
    assert derive(of(groups, 16), groups).measured_multiple is None


def test_runs_with_blocks_of_another_size_are_cells_of_their_own() -> None:
    small, large = (
        [
            run(16, rate, policy=policy, server={"model": "m", "device": "cpu", "block_tokens": size})
            for policy in POLICIES
        ]
        for rate, size in ((4.0, 16), (5.0, 32))
    )
    kept = merged(small, large)
    assert len(kept) == 4
    for runs in (small, large):
        groups = groups_of(runs)
        assert derive(of(groups, 16), groups).of_no_swap == 1.0
    groups = groups_of([small[0], large[1]])
    assert derive(of(groups, 16), groups).of_no_swap is None


def test_runs_of_another_card_of_the_same_kind_are_cells_of_their_own() -> None:
    server = {"model": "large", "device": "cuda"}
    one = run(8, 1.0, server=server, machine={"device": "NVIDIA H200"})
    other = run(8, 2.0, server=server, machine={"device": "NVIDIA H100"})
    again = run(8, 3.0, server=server, machine={"device": "NVIDIA H200"})
    assert merged([one], [other]) == [one, other]
    assert merged([one, other], [again]) == [again, other]
    assert [nameless(some) for some in (one, run(8, 1.0, server=server), run(8, 1.0, server={"device": "cpu"}))] == [
        False,
        True,
        False,
    ]


def test_a_card_that_only_some_runs_name_is_two_cells_and_is_told() -> None:
    server = {"model": "large", "device": "cuda"}
    bare = run(8, 1.0, server=server)
    named = run(16, 1.0, server=server, machine={"device": "NVIDIA H200"})
    assert len(groups_of([bare, {**bare, "machine": named["machine"]}])) == 2
    assert [half_named(one, others) for one, others in ((named, [named, bare]), (bare, [named]))] == [True, True]
    assert [half_named(one, others) for one, others in ((named, [named]), (bare, [bare]), (named, []))] == [False] * 3
    assert not half_named(named, [run(8, 1.0, server={"model": "small", "device": "cuda"})])
    cpu = {"model": "large", "device": "cpu"}
    assert not half_named(run(8, 1.0, server=cpu), [run(8, 1.0, server=cpu, machine={"device": "a box"})])


def test_files_that_processes_add_to_at_the_same_time_keep_every_run(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with ThreadPoolExecutor(8) as several:  # a lock is held by the open folder, so threads stand for processes
        list(several.map(lambda agents: add_runs(path, [run(agents, 1.0)]), range(1, 25)))
    assert sorted(one["cell"]["agents"] for one in read_runs(path)) == list(range(1, 25))


def test_place_that_takes_no_file_is_found_out_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "results.json")
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(OSError, match="file"):
        check_writable(tmp_path / "file" / "results.json")
