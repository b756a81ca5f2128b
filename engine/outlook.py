"""What ``auto`` looks at, put together from those who know it: waits, the link, the pool. Torch-free; changes nothing."""

from __future__ import annotations

from typing import Final

from .config import EngineConfig
from .findings import Residency
from .forecast import Forecasts, Left
from .geometry import KVGeometry
from .meters import LinkMeter, Tally
from .policy import Candidate, Outlook, believed_s, victims
from .records import AgentState
from .sessions import Session, Sessions
from .swap.contract import Direction
from .tiers import TieredCache

_NEVER_S: Final = 1e6
"""How long an agent is expected to stay away that nobody expects."""


class Outlooks:
    """Facts for the policy. ``short_blocks`` is what waiting requests lack; the loop keeps it up to date."""

    def __init__(
        self,
        config: EngineConfig,
        geometry: KVGeometry,
        cache: TieredCache,
        sessions: Sessions,
        link: LinkMeter,
        tally: Tally,
    ) -> None:
        self.short_blocks = 0
        self._config = config
        self._geometry = geometry
        self._cache = cache
        self._sessions = sessions
        self._link = link
        self._tally = tally

    def of(self, agent: str, residency: Residency, now_ns: int) -> Outlook:
        """The outlook on ``agent``, whose context lies as ``residency`` says."""
        session = self._sessions.agents[agent]
        restore_s = self._copy_s(residency.blocks, Direction.IN)
        recompute_s = None
        if self._tally.prefilled_tokens and self._tally.prefill_s:
            tokens = residency.blocks * self._geometry.block_tokens
            recompute_s = tokens * self._tally.prefill_s / self._tally.prefilled_tokens
        return Outlook(
            left=left(session, self._sessions.forecasts, now_ns),
            elapsed_s=(now_ns - session.since_ns) / 1e9,
            round_trip_s=restore_s + self._copy_s(residency.blocks - residency.host_blocks, Direction.OUT),
            restore_s=restore_s,
            recompute_s=recompute_s,
            short=self.short_blocks / self._config.device_blocks,
            idleness=session.idleness(now_ns),
            answers=session.answers,
        )

    def victims(self, now_ns: int) -> list[Candidate]:
        """The agents of whom nothing runs and either tier has something, the first to give way first."""
        return victims(
            Candidate(
                session.agent,
                _expected_s(session, self._sessions.forecasts, now_ns),
                session.idleness(now_ns) or 0.0,
                self._cache.context_tokens(session.agent) // self._geometry.block_tokens,
            )
            for session in self._sessions.agents.values()
            if session.activity is None and self._cache.claims.has_blocks(session.agent)
        )

    def back_within(self, agent: str, seconds: float, now_ns: int) -> bool:
        """Whether something of it runs, or its wait is expected to end so soon."""
        session = self._sessions.agents[agent]
        return session.activity is not None or _expected_s(session, self._sessions.forecasts, now_ns) <= seconds

    def _copy_s(self, blocks: int, direction: Direction) -> float:
        rate = self._link.bytes_per_s(direction) or self._config.link_bytes_per_s
        return max(blocks, 0) * self._geometry.block_bytes / rate


def waits(session: Session) -> bool:
    """Whether nothing of it runs, it waits for a tool or a person or is silent for a time, and it is not given up."""
    known = session.blocked or session.state is AgentState.HUMAN or (session.silent and session.expected)
    return session.activity is None and not session.gone and known


def believed(session: Session, forecasts: Forecasts, now_ns: int) -> bool:
    """Whether one of its open calls at least may still end, by what such calls have taken."""
    return any(
        now_ns - call.since_ns < believed_s(forecasts.longest_s(call.tool)) * 1e9 for call in session.open.values()
    )


def left(session: Session, forecasts: Forecasts, now_ns: int) -> Left | None:
    """What is left of the agent's wait: of parallel calls the one that lasts longest; ``None`` where nothing is known."""
    if not session.open:
        away = forecasts.silence if session.silent and session.expected else forecasts.pause
        return away((now_ns - session.since_ns) / 1e9)
    every = [forecasts.call(call.tool, max(now_ns - call.since_ns, 0) / 1e9) for call in session.open.values()]
    known = [one for one in every if one is not None]
    return max(known, key=lambda one: one.p50_s) if len(known) == len(every) else None


def _expected_s(session: Session, forecasts: Forecasts, now_ns: int) -> float:
    if session.gone:
        return _NEVER_S
    found = left(session, forecasts, now_ns) if waits(session) else None
    # Of whom nothing is known: as long again as it has waited, which is right within a factor of two half of the time.
    return found.mean_s if found is not None else (now_ns - session.since_ns) / 1e9
