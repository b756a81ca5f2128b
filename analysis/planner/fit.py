"""How many agents a rig holds, with and without a tier of host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from ..capacity import ideal, machine_repair
from .costs import Rig
from .models import ModelShape

Bound = Literal["vram", "host", "slots"]

RESERVE: Final = 0.1  # of the VRAM: activations, graphs, the display


@dataclass(frozen=True, slots=True)
class Fit:
    """Agents of ``context_tokens`` each, of which ``agent_bytes`` is the cache.

    ``pool_bytes`` of VRAM hold ``resident_agents``. With a host tier, which keeps a copy of every cache,
    ``tier_agents`` find room. ``wanted_agents`` keep the slots busy (``None`` where b is 1) and need ``host_needed_bytes``;
    ``served_agents`` is the smaller number, ``bound_by`` what limits it: ``vram`` where it holds fewer agents than there
    are slots. ``throughput_multiple`` is over agents that hold their slot while blocked, with queueing.
    """

    pool_bytes: int
    context_tokens: int
    agent_bytes: int
    resident_agents: int
    tier_agents: int
    wanted_agents: int | None
    host_needed_bytes: int | None
    served_agents: int
    bound_by: Bound
    throughput_multiple: float | None


def pool_bytes(rig: Rig, weights_bytes: int) -> int:
    """VRAM left for caches beside the weights and a reserve; 0 where the weights do not fit."""
    return max(0, math.floor(rig.vram_bytes * (1 - RESERVE)) - weights_bytes)


def fit(model: ModelShape, rig: Rig, pool: int, context_tokens: int, b: float) -> Fit:
    """Agents that ``pool`` bytes of VRAM and the rig's host memory hold, and its slots keep busy, at blocked share ``b``."""
    each = model.cache_bytes(context_tokens)
    resident = pool // each
    busy = min(rig.slots, resident)
    tier = max(resident, rig.host_bytes // each) if resident else 0
    multiple = ideal(b)
    wanted = math.floor(busy * multiple + 0.5) if multiple is not None else None
    served = tier if wanted is None else min(tier, max(wanted, busy))
    return Fit(
        pool_bytes=pool,
        context_tokens=context_tokens,
        agent_bytes=each,
        resident_agents=resident,
        tier_agents=tier,
        wanted_agents=wanted,
        host_needed_bytes=None if wanted is None else wanted * each,
        served_agents=served,
        bound_by=_bound(resident, tier, wanted, rig.slots),
        throughput_multiple=machine_repair(b, busy, served)[0] if busy and b < 1 else None,
    )


def _bound(resident: int, tier: int, wanted: int | None, slots: int) -> Bound:
    if resident < slots:
        return "vram"
    return "host" if wanted is None or tier < wanted else "slots"
