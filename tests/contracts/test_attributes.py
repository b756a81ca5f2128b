"""Names are a contract with files that are already written: later work only adds."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvtrace.tracer import attributes

_GOLDEN = Path(__file__).with_name("attributes.json")


def _names() -> dict[str, str]:
    return {key: value for key, value in vars(attributes).items() if key.isupper() and isinstance(value, str)}


def test_every_name_is_in_the_golden_file() -> None:
    # A new name is added to the golden file by hand; an old one never changes and never goes.
    assert _names() == json.loads(_GOLDEN.read_text(encoding="utf-8"))


def test_no_two_names_mean_the_same() -> None:
    span_names = [
        value for key, value in _names().items() if not key.startswith(("OPERATION_", "OUTCOME_", "TOOL_TYPE"))
    ]
    assert len(span_names) == len(set(span_names))


def test_every_name_says_its_meaning_beside_it() -> None:
    lines = Path(attributes.__file__).read_text(encoding="utf-8").splitlines()
    constants = [line for line in lines if re.match(r"(?!ENV_|OPERATION_|SERVICE_)[A-Z_0-9]+: Final", line)]
    assert [line for line in constants if "  # " not in line] == []


def test_names_go_where_the_conventions_put_them() -> None:
    for key, value in _names().items():
        if key.startswith("GEN_AI_"):
            assert value.startswith("gen_ai."), key
