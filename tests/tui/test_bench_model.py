"""``kvtrace bench decode`` and ``prefill`` on the CPU, with a tiny random model."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvtrace.tui.cli import cli
from kvtrace.tui.exits import CommandError, ExitCode

pytest.importorskip("torch")

DECODE = ["bench", "decode", "--device", "cpu", "--model", "random:tiny", "--case", "2x40", "--steps", "3"]
PREFILL = ["bench", "prefill", "--device", "cpu", "--model", "random:tiny", "--tokens", "40", "--step-tokens", "16"]


def test_decode_gives_each_case_beside_its_floor() -> None:
    result = CliRunner().invoke(cli, [*DECODE, "--case", "1x20", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["machine"]["versions"]["torch"]
    assert [(case["batch"], case["context_tokens"]) for case in document["cases"]] == [(2, 40), (1, 20)]
    two, one = document["cases"]
    # Both read all weights but the embedding; the first reads KV of 60 tokens more.
    assert two["floor_bytes"] - one["floor_bytes"] == 60 * document["kv_token_bytes"]
    embedding = 512 * 128 * 4
    assert one["floor_bytes"] == document["weights_bytes"] - embedding + 20 * document["kv_token_bytes"]
    for case in document["cases"]:
        assert case["steps"] == 3
        assert case["floor_ms"] == pytest.approx(case["floor_bytes"] / document["copy_bytes_per_s"] * 1e3)
        assert case["times_floor"] == pytest.approx(case["ms_per_step"] / case["floor_ms"])
        assert case["tokens_per_s"] == pytest.approx(case["batch"] / case["ms_per_step"] * 1e3)


def test_prefill_gives_each_length_with_each_size_of_step() -> None:
    result = CliRunner().invoke(cli, [*PREFILL, "--step-tokens", "64", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    prompts = json.loads(result.stdout)["prompts"]
    assert [(prompt["tokens"], prompt["step_tokens"]) for prompt in prompts] == [(40, 16), (40, 64)]
    for prompt in prompts:
        assert prompt["tokens_per_s"] == pytest.approx(40 / prompt["ms"] * 1e3)


@pytest.mark.parametrize(("arguments", "words"), [(DECODE, "÷ floor"), (PREFILL, "tokens/step")])
def test_the_table_is_all_that_stdout_has(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert words in result.stdout
    assert "measuring" not in result.stdout


@pytest.mark.parametrize("case", ["8", "8x", "0x100", "8x1e3", "1x2x3"])
def test_a_case_that_is_none_is_a_usage_error(case: str) -> None:
    result = CliRunner().invoke(cli, ["bench", "decode", "--case", case])
    assert result.exit_code == ExitCode.USAGE
    assert "is no batch and context like 8x1000" in result.output


def test_an_unknown_geometry_is_named() -> None:
    result = CliRunner().invoke(cli, ["bench", "prefill", "--device", "cpu", "--model", "random:huge"])
    assert isinstance(result.exception, CommandError)
    assert "no geometry 'huge'" in str(result.exception)
    assert "qwen3-8b" in str(result.exception)
