"""The engine's own policies, in the words a replay asks in: the one place where analysis and engine meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.policy import AgentView, Moment, decide

if TYPE_CHECKING:
    from kvtrace.analysis.planner import policy


class EnginePolicy:
    """One of the engine's modes as a :class:`kvtrace.analysis.planner.policy.Policy`."""

    def __init__(self, mode: PolicyMode) -> None:
        self._mode = mode
        self.name = mode.value
        self.uses_host = mode.uses_host

    def actions(self, moment: policy.Moment, facts: policy.Facts) -> Sequence[str]:
        """The engine's actions at this moment by their names, in its order."""
        view = AgentView(facts.agent, facts.tool, facts.blocks, facts.device_blocks, facts.host_blocks)
        return [type(action).__name__.lower() for action in decide(self._mode, Moment(moment), view)]


def engine_policies() -> list[EnginePolicy]:
    """Every mode the engine has."""
    return [EnginePolicy(mode) for mode in PolicyMode]
