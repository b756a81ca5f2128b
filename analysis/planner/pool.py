"""Two tiers of blocks that agents share in a replay: who holds how much of which, and who gives way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Rank(IntEnum):
    """Whose device blocks are handed out first, the least recently used of one rank before the others."""

    DEMOTED = 0
    RESTING = 1
    PROMOTED = 2
    ACTIVE = 3  # generates: never


@dataclass(slots=True, eq=False)
class Holder:
    """An agent's cache of ``blocks``, of which the first ``device`` and the first ``host`` are held in either tier.

    Blocks leave the device from the end. ``arrives_s`` is when the last copy in is done, ``copied_s`` the last copy out.
    """

    agent: str
    blocks: int = 0
    device: int = 0
    host: int = 0
    rank: Rank = Rank.RESTING
    touched_s: float = 0.0
    arrives_s: float = 0.0
    copied_s: float = 0.0
    blocked: bool = False
    counted_s: float = 0.0


class Pool:
    """``device_free`` and ``host_free`` blocks, and what the blocked agents' caches occupied, in block-seconds.

    ``idle_block_s`` is what they would occupy if nothing ever left the device, ``vacated_block_s`` what they did not.
    """

    def __init__(self, device_blocks: int, host_blocks: int) -> None:
        self.device_free, self.host_free = device_blocks, host_blocks
        self.idle_block_s = self.vacated_block_s = 0.0
        self._holders: dict[Holder, None] = {}

    def join(self, holder: Holder) -> None:
        """Let an agent take part."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Give everything an agent holds back for good."""
        del self._holders[holder]
        self.device_free += holder.device
        self.host_free += holder.host

    def take(self, holder: Holder, count: int, now_s: float, below: Rank) -> float | None:
        """Give ``holder`` more device blocks, taken from others of rank ``below`` that where none are free.

        Returns the instant from which they can be written, which is when copies out of their last owners are done;
        ``None``, with nothing changed, where there are not enough.
        """
        victims = [] if count <= self.device_free else self._victims(holder, below)
        if count > self.device_free + sum(victim.device for victim in victims):
            return None
        usable_s = now_s
        for victim in victims:
            if self.device_free >= count:
                break
            usable_s = max(usable_s, victim.copied_s if victim.host else now_s)
            self.give(victim, min(victim.device, count - self.device_free), now_s)
        self.count(holder, now_s)
        self.device_free -= count
        holder.device += count
        return usable_s

    def room(self, holder: Holder, below: Rank) -> int:
        """Blocks that :meth:`take` could give."""
        return self.device_free + sum(victim.device for victim in self._victims(holder, below))

    def give(self, holder: Holder, count: int, now_s: float) -> None:
        """Free the last ``count`` device blocks of an agent."""
        self.count(holder, now_s)
        holder.device -= count
        self.device_free += count

    def copy_out(self, holder: Holder) -> int:
        """Give the host what it lacks of an agent's cache, as far as it has room; returns how many blocks."""
        count = max(0, min(holder.blocks - holder.host, holder.device - holder.host, self.host_free))
        holder.host += count
        self.host_free -= count
        return count

    def shorten(self, holder: Holder, blocks: int, now_s: float) -> None:
        """Forget what lies beyond ``blocks``: a context that was made shorter."""
        if holder.device > blocks:
            self.give(holder, holder.device - blocks, now_s)
        dropped = max(0, holder.host - blocks)
        holder.host -= dropped
        self.host_free += dropped
        holder.blocks = min(holder.blocks, blocks)

    def count(self, holder: Holder, now_s: float) -> None:
        """Add up what a blocked agent occupied since it was last asked about."""
        if holder.blocked:
            self.idle_block_s += holder.blocks * (now_s - holder.counted_s)
            self.vacated_block_s += (holder.blocks - holder.device) * (now_s - holder.counted_s)
        holder.counted_s = now_s

    def _victims(self, holder: Holder, below: Rank) -> list[Holder]:
        others: Iterable[Holder] = (each for each in self._holders if each is not holder)
        return sorted(
            (each for each in others if each.rank < below and each.device), key=lambda each: (each.rank, each.touched_s)
        )
