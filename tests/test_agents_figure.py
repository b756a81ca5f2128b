"""The scripts of benchmarks/agents/ that make figure and tables from results, run as a reader would."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "agents"
SVG = "{http://www.w3.org/2000/svg}"


def run(
    agents: int, rate: float, *, policy: str | None = "auto", engine: str = "kvtrace", steady_s: float | None = None
) -> dict[str, Any]:
    cell = {"engine": engine, "policy": policy, "agents": agents, "seed": 1, "tool": "exp:1.868", "steady_s": steady_s}
    first = 0.02 * agents / 8
    return {
        "cell": {**cell, "prompt": 6000, "returns": 4, "generate": 64, "new": 100, "slots": 8},
        "turns_per_s": rate,
        "ideal_turns_per_s": rate * 1.25,
        "turns_per_s_of_ideal": 0.8,
        "ideal_return_ttft_p50_s": 0.01,
        "return_ttft_s": {"p50": first, "p95": 2 * first},
        "return_ttft_all_s": [first, 2 * first],
        "decoding_mean": 7.5,
        "reprefilled_tokens": 0 if engine == "kvtrace" else None,
        "b": 0.75,
        "moved": {"out_bytes": 10, "in_bytes": 10, "freed_byte_s": 5.0, "handed_byte_s": 4.0},
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "agents.json"
    runs = [run(8, 2.0), run(16, 4.0), run(48, 8.0), run(16, 3.0, policy="recompute"), run(16, 2.0, policy="eager")]
    runs += [run(48, 4.0, engine="vllm-plain", policy=None)]
    runs += [run(8, 3.0, policy="recompute", steady_s=45.0), run(32, 7.5, steady_s=45.0), run(48, 9.0, steady_s=45.0)]
    path.write_text(json.dumps({"schema_version": 2, "runs": runs}), encoding="utf-8")
    return path


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / name), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_figure_draws_every_engine_and_the_ideal_in_three_panels(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "agents.svg"
    done = script("figure.py", str(results), "--svg", str(path))
    assert done.returncode == 0, done.stderr
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    words = {element.text for element in root.iter(f"{SVG}text")}
    assert {"kvtrace", "kvtrace without swap", "vLLM", "KV that moves for free", "turns/s"} <= words
    assert len(list(root.findall(f"{SVG}g"))) == 3
    dots = list(root.iter(f"{SVG}circle"))
    # Two closed-loop panels with six measured points each, and three steady ones.
    assert len(dots) == 2 * 6 + 3
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 <= float(dot.attrib["cx"]) <= width and 0 <= float(dot.attrib["cy"]) <= height for dot in dots)


def test_tables_hold_runs_against_ideal_no_swap_and_eager(results: Path) -> None:
    done = script("figure.py", str(results), "--table")
    assert done.returncode == 0, done.stderr
    (ours,) = [line for line in done.stdout.splitlines() if line.startswith("| kvtrace | 16 | 1 |")]
    assert "| 4.00 | 0.800 | 1.33 | 2.00 |" in ours  # turns/s, of ideal, of no swap, multiple
    assert "auto ÷ eager at 16 agents: moved_bytes 1.00" in done.stdout
    assert "finished agents replaced" in done.stdout
    assert "kvtrace: within twice the resident first token up to 16 agents as run" in done.stdout


def test_results_of_several_machines_hours_are_merged_into_one_file(results: Path, tmp_path: Path) -> None:
    other, whole = tmp_path / "other.json", tmp_path / "whole.json"
    other.write_text(json.dumps({"schema_version": 2, "runs": [run(64, 9.0), run(16, 4.4)]}), encoding="utf-8")
    assert script("figure.py", str(results), str(other), "--merge", str(whole)).returncode == 0
    runs = json.loads(whole.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 10
    assert 4.4 in [one["turns_per_s"] for one in runs if one["cell"]["agents"] == 16]


@pytest.mark.parametrize(
    "words", [["kvtrace:auto", "16"], ["kvtrace", "16@1"], ["vllm", "16@1"], ["at:x", "8@1+often=3"]]
)
def test_cells_and_engines_that_nobody_can_run_are_refused(words: list[str], tmp_path: Path) -> None:
    done = script("run.py", *words, "--append", str(tmp_path / "out.json"), "--small")
    assert done.returncode == 2
    assert "run.py: error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_server_that_never_comes_is_told_and_leaves_no_results(tmp_path: Path) -> None:
    words = ("at:nobody", "8@1", "--append", str(tmp_path / "out.json"), "--budget", "1", "--port", "9")
    done = script("run.py", *words)
    assert done.returncode == 1
    assert "did not come" in done.stdout


def test_port_that_somebody_listens_on_is_refused_so_that_nobody_else_is_measured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = script(
            "run.py", "kvtrace:auto", "1@1", "--append", str(tmp_path / "out.json"), "--small", "--port", port
        )
    assert done.returncode == 2
    assert f"port {port} already" in done.stderr


def test_figure_finds_a_seed_that_was_measured_after_another(results: Path, tmp_path: Path) -> None:
    runs = json.loads(results.read_text(encoding="utf-8"))["runs"]
    second = [{**one, "cell": {**one["cell"], "seed": 2}} for one in runs]
    results.write_text(json.dumps({"schema_version": 2, "runs": second + runs}), encoding="utf-8")
    one, two = (tmp_path / name for name in ("one.svg", "two.svg"))
    assert script("figure.py", str(results), "--svg", str(one)).returncode == 0
    assert script("figure.py", str(results), "--svg", str(two), "--seed", "2").returncode == 0
    assert one.read_text(encoding="utf-8") == two.read_text(encoding="utf-8")


def test_figure_writes_no_number_of_agents_over_another(results: Path, tmp_path: Path) -> None:
    runs = json.loads(results.read_text(encoding="utf-8"))["runs"]
    near = [{**one, "cell": {**one["cell"], "agents": agents}} for one in runs for agents in (22, 23, 24, 60)]
    results.write_text(json.dumps({"schema_version": 2, "runs": runs + near}), encoding="utf-8")
    path = tmp_path / "near.svg"
    assert script("figure.py", str(results), "--svg", str(path)).returncode == 0
    below = re.findall(
        r'<text x="([\d.]+)" y="\d+" text-anchor="middle">(\d+)</text>', path.read_text(encoding="utf-8")
    )
    assert {"24", "60"} <= {number for _, number in below}
    assert "22" not in {number for _, number in below}


@pytest.mark.parametrize("words", [["--seed", "9", "--svg", "x.svg"], ["nowhere.json"], ["--merge", "/proc/none/x"]])
def test_what_figure_cannot_do_is_one_sentence(words: list[str], results: Path) -> None:
    done = script("figure.py", str(results), *words)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
