"""``kvtrace bench link`` and ``swap`` on the CPU: real copies, small ones."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from kvtrace.tui.cli import cli
from kvtrace.tui.commands.bench import VERBS
from kvtrace.tui.commands.bench_link import _show
from kvtrace.tui.exits import CommandError, ExitCode

pytest.importorskip("torch")

LINK = ["bench", "link", "--device", "cpu", "--bytes", "1MiB", "--repeats", "1"]
SWAP = ["bench", "swap", "--device", "cpu", "--geometry", "smollm2", "--tokens", "64", "--repeats", "1"]


def _run(arguments: list[str]) -> Any:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_answers_help(verb: str) -> None:
    result = CliRunner().invoke(cli, ["bench", verb, "--help"])
    assert result.exit_code == 0, result.output
    assert f"bench {verb}" in result.output


def test_an_unknown_verb_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli, ["bench", "everything"]).exit_code == ExitCode.USAGE


def test_link_gives_rates_and_a_sweep_with_the_machine_and_versions() -> None:
    document = json.loads(_run([*LINK, "--json"]).stdout)
    assert document["schema_version"] == 1
    assert document["machine"]["versions"]["torch"]
    link = document["link"]
    assert link["copied_bytes"] == 2**20
    assert [row["block_bytes"] for row in link["sweep"]] == [2**power for power in range(15, 21)]
    for row in link["sweep"]:
        assert row["out_share"] == pytest.approx(row["out_bytes_per_s"] / link["out_bytes_per_s"])
    slower = min(link["out_bytes_per_s"], link["in_bytes_per_s"])
    assert link["both_ratio"] == pytest.approx(link["both_bytes_per_s"] / slower)


def test_swap_gives_every_way_against_raw_copies_of_the_same_bytes() -> None:
    document = json.loads(_run([*SWAP, "--json"]).stdout)
    (swap,) = document["swaps"]
    assert swap["blocks"] == 4
    assert swap["moved_bytes"] == 4 * 360 * 1024
    assert [row["case"] for row in swap["rows"]] == ["out", "in", "both", "out, scattered slots", "in, scattered slots"]
    for row in swap["rows"]:
        ways = 2 if row["case"] == "both" else 1
        assert row["bytes_per_s"] * row["seconds"] == pytest.approx(ways * swap["moved_bytes"])
        assert row["ratio"] == pytest.approx(row["bytes_per_s"] / row["raw_bytes_per_s"])
    rates = {row["case"]: row["bytes_per_s"] for row in swap["rows"]}
    assert swap["both_ratio"] == pytest.approx(rates["both"] / min(rates["out"], rates["in"]))
    assert swap["host_pinned_bytes"] == 0


@pytest.mark.parametrize(("arguments", "words"), [(LINK, "both ways at once"), (SWAP, "÷ raw")])
def test_the_table_is_all_that_stdout_has(arguments: list[str], words: str) -> None:
    result = _run(arguments)
    assert words in result.stdout
    assert "measuring" not in result.stdout


def test_a_device_that_is_not_there_ends_with_no_gpu() -> None:
    result = CliRunner().invoke(cli, ["bench", "link", "--device", "cuda:63"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.code is ExitCode.NO_DATA
    assert "no device cuda:63" in str(result.exception)


def test_a_way_that_the_device_has_not_is_refused_with_those_it_has() -> None:
    result = CliRunner().invoke(cli, [*SWAP, "--way", "batched"])
    assert isinstance(result.exception, CommandError)
    assert "blocks have no way batched on cpu, only thread: leave --way out" in str(result.exception)


def test_swap_says_what_auto_came_to() -> None:
    document = json.loads(_run([*SWAP, "--way", "auto", "--json"]).stdout)
    assert [swap["way"] for swap in document["swaps"]] == ["thread"]
    assert document["shape"]["way"] == "auto"


def test_the_sweep_shows_one_call_beside_one_by_one_where_there_is_such_a_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from kvtrace.engine.bench.link import LinkResult, SweepRow

    rows = (SweepRow(32768, 5e9, 5e9, 0.09, 0.1), SweepRow(65536, 10e9, 11e9, 0.18, 0.2, 54e9, 55e9, 0.98, 0.99))
    _show(LinkResult(1 << 30, True, 55e9, 55e9, 100e9, 1.82, rows), "a card")
    small, large = (line for line in capsys.readouterr().out.splitlines() if " KiB" in line and "GB/s" not in line)
    assert small.split()[-2:] == ["0.98", "0.99"]
    assert large.split()[-2:] == ["0.09", "0.10"]


def test_pools_beyond_the_memory_are_refused_with_both_numbers() -> None:
    result = CliRunner().invoke(cli, ["bench", "swap", "--device", "cpu", "--tokens", "99999999999"])
    assert isinstance(result.exception, CommandError)
    assert re.search(r"need [\d.]+ GiB of host memory, of which [\d.]+ GiB are free", str(result.exception))


def test_listing_the_verbs_loads_no_torch() -> None:
    program = (
        "import sys\nfrom kvtrace.tui.cli import main\n"
        "for words in (['bench', '--help'], ['bench', 'swap', '--help']):\n"
        "    try:\n        main(words)\n    except SystemExit as end:\n        assert end.code == 0, end.code\n"
        "print([m for m in ('torch', 'transformers', 'duckdb', 'textual', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["link", "--bytes", "lots"], "'--bytes': 'lots' is not a size"),
        (["agents", "--tool", "hammer"], "--tool hammer: give exp:MEAN"),
        (["agents", "--url", "ftp://box"], "cannot use 'ftp://box'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(options: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["bench", *options])
    assert (result.exit_code, words in result.output) == (ExitCode.USAGE, True), result.output


def test_agents_take_an_address_as_clients_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("KVTRACE_ENGINE", where)
        for options in ([], ["--url", where], ["--url", f"{where}/v1"], ["--url", f"{where}/v1/"]):
            error = CliRunner().invoke(cli, ["bench", "agents", *options]).exception
            assert isinstance(error, CommandError)
            assert (error.code, f"at {where}/v1/models:" in str(error)) == (ExitCode.UNREACHABLE, True)
