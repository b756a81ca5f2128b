from __future__ import annotations

from typing import Any

import pytest

from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.errors import ConfigError

GOOD: dict[str, Any] = {"device_blocks": 4, "host_blocks": 0}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_blocks", 0),
        ("host_blocks", -1),
        ("slots", 0),
        ("step_tokens", 7),
        ("mixed_step_tokens", 7),
        ("context_tokens", 1),
        ("queue_requests", 0),
        ("signal_ttl_s", 0.0),
        ("signal_ttl_s", float("nan")),
        ("signal_ttl_s", float("inf")),
        ("max_agents", 0),
        ("turn_handicap_s", float("nan")),
        ("turn_handicap_s", float("-inf")),
    ],
)
def test_bad_value_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        EngineConfig(**{**GOOD, field: value})


def test_policy_may_be_its_name() -> None:
    assert EngineConfig(**GOOD, policy="eager").policy is PolicyMode.EAGER  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="policy is 'sometimes'; give one of keep, recompute, eager, swap"):
        EngineConfig(**GOOD, policy="sometimes")  # type: ignore[arg-type]


def test_only_eager_and_swap_use_the_host() -> None:
    assert [mode for mode in PolicyMode if mode.uses_host] == [PolicyMode.EAGER, PolicyMode.SWAP, PolicyMode.AUTO]
