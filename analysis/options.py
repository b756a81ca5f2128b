"""What a report assumes where nothing was measured, and the knobs of its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
US_PER_S: Final = 1_000_000
BYTES_PER_GB: Final = 1_000_000_000
BYTES_PER_TOKEN: Final = 147_456
WINDOW_CAP_S: Final = 60
WINDOW_CAP_NS: Final = WINDOW_CAP_S * NS_PER_S


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Assumptions of one report.

    ``round_trip_ms`` is one copy of an agent's KV cache to host memory and back, ``recompute_s`` rebuilding it from its
    tokens instead (6,900 of them at 962 a second), ``bytes_per_token`` the KV bytes of one token over all layers,
    ``slots`` how many agents a card decodes at once. ``seed`` and ``replicates`` drive the bootstrap. Raises
    ``ValueError`` for values that mean nothing.
    """

    round_trip_ms: float = 41.0
    recompute_s: float = 7.2
    slots: int = 8
    bytes_per_token: int = BYTES_PER_TOKEN
    seed: int = 0
    replicates: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.round_trip_ms < float("inf"):
            raise ValueError(f"round_trip_ms must be a finite number >= 0, got {self.round_trip_ms}")
        if not 0 <= self.recompute_s < float("inf"):
            raise ValueError(f"recompute_s must be a finite number >= 0, got {self.recompute_s}")
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots}")
        if self.replicates < 1:
            raise ValueError(f"replicates must be at least 1, got {self.replicates}")

    @property
    def round_trip_ns(self) -> int:
        """The round trip in nanoseconds."""
        return round(self.round_trip_ms * NS_PER_MS)

    @property
    def round_trip_s(self) -> float:
        """The round trip in seconds."""
        return self.round_trip_ns / NS_PER_S
