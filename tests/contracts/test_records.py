from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from kvtrace.engine import records
from kvtrace.engine.records import (
    AgentRecord,
    AgentState,
    EngineEvent,
    EventKind,
    HostTier,
    Link,
    Snapshot,
    Tiers,
    Totals,
    VramTier,
)

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "state.json").read_text())
SCHEMA = json.loads((HERE.parents[1] / "docs" / "state.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)

SNAPSHOT = Snapshot(
    time_unix_ns=1_790_000_000_000_000_000,
    model="Qwen/Qwen3-8B",
    device="cuda:0",
    policy="swap",
    tiers=Tiers(
        VramTier(17_179_869_184, 4_680_000_000, 8_087_666_688, 6_000_000_000, 2_000_000_000, 87_666_688, None),
        HostTier(32_000_000_000, 1_017_446_400, 32_000_000_000, 30_982_553_600),
    ),
    link=Link(0.0, 50e9, 52.7e9, 51.7e9, 9_000_000_000, 8_000_000_000),
    agents=(
        AgentRecord(
            *("writer", AgentState.GENERATING, None, 1.5, 6900, 1_017_446_400, 0, 39.6, 0.25, 0, 0, 6900),
            state_seconds={"generating": 3.0, "blocked_resident": 1.0},
        ),
        AgentRecord("tester", AgentState.PARKED, "pytest", 12.25, 6900, 0, 1_017_446_400, None, None, 3, 2, 6900),
    ),
    events=(
        EngineEvent(
            *(1_789_999_999_000_000_000, "tester", EventKind.PARK, "pytest", 1_017_446_400, 20.3, "waits for pytest"),
            trace_id="5b8efff798038103d269b633813fc60c",
            span_id="eee19b7ec3c1b174",
        ),
        EngineEvent(1_789_999_999_500_000_000, "writer", EventKind.REFUSE, None, 0, None, "too long"),
    ),
    totals=Totals(10_000, 0, 2_000, 6_000, 900, 0, 1, 512, 1.25),
    device_name="NVIDIA H200",
    block_tokens=32,
)


def record_types(kind: Any = Snapshot) -> list[Any]:
    """``kind`` and every record type inside it."""
    nested = [inner for hint in get_type_hints(kind).values() for inner in (hint, *get_args(hint))]
    return [kind, *(found for inner in nested if is_dataclass(inner) for found in record_types(inner))]


def test_snapshot_matches_the_golden_file() -> None:
    assert json.loads(json.dumps(SNAPSHOT.as_json())) == GOLDEN


def test_golden_file_validates() -> None:
    VALIDATOR.validate(GOLDEN)


@pytest.mark.parametrize("kind", record_types(), ids=lambda kind: kind.__name__)
def test_schema_has_exactly_the_record_fields(kind: Any) -> None:
    described = SCHEMA if kind is Snapshot else SCHEMA["$defs"][kind.__name__]
    names = [field.name for field in fields(kind)]
    assert list(described["properties"]) == names
    assert described["required"] == names


def test_schema_lists_every_state_and_event() -> None:
    assert SCHEMA["$defs"]["AgentRecord"]["properties"]["state"]["enum"] == [str(state) for state in AgentState]
    assert SCHEMA["$defs"]["EngineEvent"]["properties"]["kind"]["enum"] == [str(kind) for kind in EventKind]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 2),
        (("totals", "steps"), None),
        (("agents", 0, "b"), 1.5),
        (("link", "in_total_bytes"), -1),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_schema_refuses_wrong_values(path: tuple[Any, ...], value: Any) -> None:
    broken = json.loads(json.dumps(GOLDEN))
    parent = broken
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    assert not VALIDATOR.is_valid(broken)


def test_version_is_pinned() -> None:
    assert records.SCHEMA_VERSION == SNAPSHOT.schema_version == 1
