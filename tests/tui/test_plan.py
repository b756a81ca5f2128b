"""``kvtrace plan`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis.testing import otlp_span, write_otlp
from kvtrace.engine.config import PolicyMode
from kvtrace.tui.exits import ExitCode

pytestmark = pytest.mark.usefixtures("own_cache")

ARTICLE = ("--bytes-per-token", "147000", "--link-gbps", "50", "--prefill-tok-s", "962", "--weights-gb", "5")


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtrace.tui", "plan", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"COLUMNS": "80", "NO_COLOR": "1"})


def as_json(*args: str | Path) -> Any:
    done = run("--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def spans(tmp_path: Path) -> Path:
    written = []
    for number in range(6):
        written += [
            otlp_span("chat", 0, 4, span=2 * number + 1, agent=f"a{number}"),
            otlp_span("execute_tool", 4, 10, span=2 * number + 2, agent=f"a{number}", name="execute_tool pytest"),
            otlp_span("chat", 10, 12, span=100 + number, agent=f"a{number}"),
        ]
    return write_otlp(tmp_path / "a.jsonl", written)


def keys(value: Any) -> Any:
    """The tree of keys; a list stands for its first item, a value for nothing."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else [] if isinstance(value, list) else None


def test_published_table_is_printed() -> None:
    done = run(*ARTICLE)
    assert (done.returncode, done.stderr) == (0, "")
    for swap, recompute in zip(
        ("11.8 ms", "40.6 ms", "94.1 ms", "188.2 ms", "323.4 ms"),
        ("2.1 s", "7.2 s", "16.6 s", "33.3 s", "57.2 s"),
        strict=True,
    ):
        (line,) = (line for line in done.stdout.splitlines() if f" {swap} " in line and "×" in line)
        assert recompute in line
        assert "177×" in line
    assert "assumed: b = 0.59, published by others" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_has_exactly_the_agreed_keys(tmp_path: Path) -> None:
    golden = json.loads((Path(__file__).parents[1] / "contracts" / "plan.json").read_text(encoding="utf-8"))
    found = as_json(*ARTICLE, spans(tmp_path))
    assert keys(found) == golden
    assert keys(as_json(*ARTICLE)) == {**golden, "tools": [], "replays": []}


def test_trace_is_replayed_under_every_mode_of_the_engine(tmp_path: Path) -> None:
    found = as_json(*ARTICLE, "--pool-tokens", "14000", "--slots", "2", spans(tmp_path))
    by_policy = {result["policy"]: result for result in found["replays"]}
    assert list(by_policy) == [*PolicyMode, "ideal"]
    assert found["b"] == pytest.approx(0.5)
    assert by_policy["recompute"]["recomputed_tokens"] > 0 == by_policy["swap"]["recomputed_tokens"]
    assert by_policy["swap"]["lost_s"] < by_policy["recompute"]["lost_s"]
    assert by_policy["swap"]["bytes_in"] <= by_policy["eager"]["bytes_in"]
    assert "the recorded work" in run(*ARTICLE, spans(tmp_path)).stdout


def test_card_too_small_for_the_model_is_said() -> None:
    done = run("--model", "Qwen3-8B")
    assert done.returncode == 0
    assert "not one cache of 6,900 tokens (1.0 GB) fits" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_figures_given_win_over_the_card(tmp_path: Path) -> None:
    rig = as_json("--gpu", "H200", "--vram-gb", "1", "--link-gbps", "2", "--prefill-tok-s", "3", "--host-gb", "4")[
        "rig"
    ]
    assert rig == {
        "vram_bytes": 2**30,
        "link_bytes_per_s": 2e9,
        "prefill_tok_s": 3.0,
        "host_bytes": 4 * 2**30,
        "slots": 8,
    }


@pytest.mark.parametrize(
    "args",
    [
        ["--gpu", "abacus"],
        ["--gpu", "RTX 4090"],
        ["--model", "no-such-model"],
        ["--b", "2"],
        ["--link-gbps", "0"],
        ["missing.jsonl"],
    ],
)
def test_misuse_is_exit_2(args: list[str]) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "Traceback" not in done.stderr


def test_source_without_data_is_exit_5(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert run(tmp_path / "empty.jsonl").returncode == ExitCode.NO_DATA
