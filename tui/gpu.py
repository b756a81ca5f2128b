"""What the GPU's own library says of memory: asked in a thread of its own, since a driver may hang.

``nvidia-ml-py`` or ``amdsmi``, whichever is installed and finds a card. Without either, nothing is known here, and the
engine's own figures are shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol

from .top.memory import OtherUse

_PERIOD_S: Final = 2.0
_STALE_S: Final = 10.0  # an answer older than that is no answer
_SAME_CARD: Final = 0.03  # what two libraries may differ by about the size of one card


@dataclass(frozen=True, slots=True)
class Card:
    """One card's memory, bytes."""

    total_bytes: int
    used_bytes: int


class Library(Protocol):
    """A vendor's library, opened."""

    name: str

    def cards(self) -> list[Card]:
        """Every card now. May block for as long as the driver likes, or raise whatever the library raises."""
        ...


class GpuProbe:
    """Keeps the newest answer of a library. Never blocks and never raises."""

    def __init__(
        self, open_library: Callable[[], Library | None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open = open_library or open_any
        self._clock = clock
        self._answer: tuple[float, str, tuple[Card, ...]] | None = None
        self._stop = threading.Event()
        # A daemon: a hung driver must not keep the program from ending.
        self._thread = threading.Thread(target=self._ask, name="kvtrace-gpu", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; returns at once, even if the driver hangs."""
        self._stop.set()

    def other_use(self, total_bytes: int | None, own_bytes: int) -> OtherUse | None:
        """Memory that is used on the engine's card beyond its own; ``None`` where nothing is known of that card.

        The card is told by its size, so with several alike nobody knows which one it is.
        """
        answer = self._answer
        if answer is None or total_bytes is None or self._clock() - answer[0] > _STALE_S:
            return None
        _, name, cards = answer
        alike = [card for card in cards if abs(card.total_bytes - total_bytes) <= _SAME_CARD * total_bytes]
        return OtherUse(max(0, alike[0].used_bytes - own_bytes), name) if len(alike) == 1 else None

    def _ask(self) -> None:
        try:
            library = self._open()
            while library is not None and not self._stop.is_set():
                cards = tuple(library.cards())
                self._answer = (self._clock(), library.name, cards)
                self._stop.wait(_PERIOD_S)
        except Exception:
            # Whatever a driver's library raises: without it the engine's own figures are shown.
            self._answer = None


def open_any() -> Library | None:
    """The first library that is installed and finds a card."""
    for opened in (_Nvidia.open, _Amd.open):
        try:
            library = opened()
            if library.cards():
                return library
        except Exception:  # noqa: S112 - not installed, no driver, no card: all the same here
            continue
    return None


class _Nvidia:
    """``nvidia-ml-py``."""

    name = "nvml"

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml, self._handles = nvml, handles

    @classmethod
    def open(cls) -> _Nvidia:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        return cls(nvml, [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())])

    def cards(self) -> list[Card]:
        told = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        return [Card(int(memory.total), int(memory.used)) for memory in told]


class _Amd:
    """``amdsmi``."""

    name = "amdsmi"

    def __init__(self, amdsmi: Any, handles: Sequence[Any]) -> None:
        self._amdsmi, self._handles = amdsmi, handles

    @classmethod
    def open(cls) -> _Amd:
        amdsmi = import_module("amdsmi")
        amdsmi.amdsmi_init()
        return cls(amdsmi, amdsmi.amdsmi_get_processor_handles())

    def cards(self) -> list[Card]:
        kind = self._amdsmi.AmdSmiMemoryType.VRAM
        return [
            Card(
                int(self._amdsmi.amdsmi_get_gpu_memory_total(handle, kind)),
                int(self._amdsmi.amdsmi_get_gpu_memory_usage(handle, kind)),
            )
            for handle in self._handles
        ]
