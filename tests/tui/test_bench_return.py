"""``kvtrace bench return`` on the CPU with the embedded model: a small agent that really leaves and comes back."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvtrace.tui.cli import cli

pytest.importorskip("torch")

SMALL = ["bench", "return", "--device", "cpu", "--tokens", "40", "--new-tokens", "8", "--repeats", "1"]


def test_document_has_every_case_with_what_crossed_the_link() -> None:
    result = CliRunner().invoke(cli, [*SMALL, "--policy", "auto", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["schema_version"], document["policy"]) == (1, "auto")
    assert document["machine"]["versions"]["torch"]
    rows = {row["case"]: row for row in document["returns"]}
    assert list(rows) == ["resident", "demand", "prefetched", "recomputed"]
    assert rows["demand"]["restored_bytes"] == rows["prefetched"]["restored_bytes"] == 3 * 16 * 30 * 2 * 3 * 64 * 4
    assert rows["resident"]["restored_bytes"] == rows["recomputed"]["restored_bytes"] == 0
    assert rows["recomputed"]["prefilled_tokens"] == 49


def test_unknown_model_is_one_sentence() -> None:
    result = CliRunner().invoke(cli, ["bench", "return", "--device", "cpu", "--model", "/nowhere/at-all.gguf"])
    assert result.exit_code == 1
    assert "there is no file /nowhere/at-all.gguf" in str(result.exception)
