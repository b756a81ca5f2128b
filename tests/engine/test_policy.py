from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.policy import (
    Action,
    AgentView,
    Demote,
    Evict,
    Mirror,
    Moment,
    Park,
    Prefetch,
    Promote,
    Rest,
    decide,
)

VIEW = AgentView("a", "grep", blocks=5, device_blocks=5, host_blocks=0)


@pytest.mark.parametrize(
    ("mode", "moment", "actions"),
    [
        (PolicyMode.RECOMPUTE, Moment.TOOL_STARTED, [Demote]),
        (PolicyMode.RECOMPUTE, Moment.RETURNED, [Promote]),
        (PolicyMode.RECOMPUTE, Moment.FILLED, []),
        (PolicyMode.RECOMPUTE, Moment.EXPIRED, [Rest]),
        (PolicyMode.EAGER, Moment.TOOL_STARTED, [Evict]),
        (PolicyMode.EAGER, Moment.RETURNED, [Promote, Prefetch]),
        (PolicyMode.EAGER, Moment.FILLED, []),
        (PolicyMode.EAGER, Moment.EXPIRED, [Rest]),
        (PolicyMode.SWAP, Moment.TOOL_STARTED, [Park, Demote]),
        (PolicyMode.SWAP, Moment.RETURNED, [Promote, Prefetch]),
        (PolicyMode.SWAP, Moment.FILLED, [Mirror]),
        (PolicyMode.SWAP, Moment.EXPIRED, [Rest]),
    ],
)
def test_mode_acts_as_documented(mode: PolicyMode, moment: Moment, actions: list[type[Action]]) -> None:
    decided = decide(mode, moment, VIEW)
    assert [type(action) for action in decided] == actions
    assert all(action.agent == "a" and action.why for action in decided)


@pytest.mark.parametrize("moment", list(Moment))
def test_keep_never_acts(moment: Moment) -> None:
    assert decide(PolicyMode.KEEP, moment, VIEW) == ()


def test_reason_names_the_tool() -> None:
    assert decide(PolicyMode.SWAP, Moment.TOOL_STARTED, VIEW)[0].why == "waits for grep"
