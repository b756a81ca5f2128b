from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.policy import (
    BELIEVED_S,
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
    believed_s,
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
        *((mode, Moment.GONE, [Rest]) for mode in PolicyMode if mode is not PolicyMode.KEEP),
    ],
)
def test_mode_acts_as_documented(mode: PolicyMode, moment: Moment, actions: list[type[Action]]) -> None:
    decided = decide(mode, moment, VIEW)
    assert [type(action) for action in decided] == actions
    assert all(action.agent == "a" and action.why for action in decided)


def test_call_is_believed_in_for_longer_than_any_before_it_and_for_ever_where_none_is_known() -> None:
    assert believed_s(None) == float("inf")
    assert believed_s(0.003) == BELIEVED_S
    assert believed_s(60.0) > 60.0


@pytest.mark.parametrize("moment", list(Moment))
def test_keep_never_acts(moment: Moment) -> None:
    assert decide(PolicyMode.KEEP, moment, VIEW) == ()


def test_reason_names_the_tool() -> None:
    assert decide(PolicyMode.SWAP, Moment.TOOL_STARTED, VIEW)[0].why == "waits for grep"
