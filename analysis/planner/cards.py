"""Cards people have, with what is known of each: memory, the copy rate to pinned host memory, prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """``link_bytes_per_s`` is one way; ``prefill_tok_s`` of an 8B model, ``None`` where nobody measured it for us."""

    name: str
    vram_bytes: int
    link_bytes_per_s: float
    prefill_tok_s: float | None
    source: str


_PCIE5: Final = "link assumed: 80 % of what PCIe 5 x16 carries"
_PCIE4: Final = "link assumed: 80 % of what PCIe 4 x16 carries"
CARDS: Final = (
    Card("RX 9070 XT", 16 * GIB, 50e9, 962.0, "link and prefill of an 8B model as published by a user of this card"),
    Card("RX 7900 XTX", 24 * GIB, 25.2e9, None, _PCIE4),
    Card("RTX 4090", 24 * GIB, 25.2e9, None, _PCIE4),
    Card("RTX 5090", 32 * GIB, 50.4e9, None, _PCIE5),
    Card("H100", 80 * GIB, 50e9, None, "link as published by the vLLM project for its offloading"),
    Card(
        "H200", 139 * GIB, 55.3e9, 40_000.0,
        "measured for kvtrace: pinned copies over PCIe 5 x16, prefill of an 8B model in 16 bit under vLLM 0.25.1",
    ),
    Card("MI300X", 192 * GIB, 50.4e9, None, _PCIE5),
)  # fmt: skip


def find_card(name: str) -> Card | None:
    """The card of that name, whatever its case and spaces; a maker's prefix may stand before it."""
    wanted = _key(name)
    return next((card for card in CARDS if wanted.endswith(_key(card.name))), None)


def _key(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
