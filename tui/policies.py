"""The engine's own policies, in the words a replay asks in: the one place where analysis and engine meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.forecast import Forecasts
from kvtrace.engine.policy import AgentView, Hold, Moment, Outlook, decide

if TYPE_CHECKING:
    from kvtrace.analysis.planner import policy


class EnginePolicy:
    """One of the engine's modes as a :class:`kvtrace.analysis.planner.policy.Policy`.

    It learns how long tools take as the engine does: from the waits that have ended so far in the replay.
    """

    def __init__(self, mode: PolicyMode) -> None:
        self._mode = mode
        self._forecasts = Forecasts()
        self._asked_s = 0.0
        self.name = mode.value
        self.uses_host = mode.uses_host

    def actions(self, moment: policy.Moment, facts: policy.Facts) -> Sequence[str | policy.Hold]:
        """The engine's actions at this moment by their names, in its order."""
        from kvtrace.analysis.planner.policy import Hold as ReplayHold

        self._learn(moment, facts)
        outlook = Outlook(
            left=self._forecasts.call(facts.tool, facts.waited_s),
            elapsed_s=facts.waited_s,
            round_trip_s=(2 * facts.blocks - facts.host_blocks) * facts.copy_s,
            restore_s=facts.blocks * facts.copy_s,
            recompute_s=facts.blocks * facts.compute_s,
            short=facts.short,
        )
        view = AgentView(facts.agent, facts.tool, facts.blocks, facts.device_blocks, facts.host_blocks, outlook)
        return [
            ReplayHold(action.seconds) if isinstance(action, Hold) else type(action).__name__.lower()
            for action in decide(self._mode, Moment(moment), view)
        ]

    def _learn(self, moment: policy.Moment, facts: policy.Facts) -> None:
        if facts.now_s < self._asked_s:
            self._forecasts = Forecasts()  # another replay begins
        self._asked_s = facts.now_s
        if moment == "returned":
            self._forecasts.call_ended(facts.tool, facts.waited_s)
            self._forecasts.wait_ended(facts.waited_s)


def engine_policies() -> list[EnginePolicy]:
    """Every mode the engine has."""
    return [EnginePolicy(mode) for mode in PolicyMode]
