"""Put the parts of one engine together: storage, mover, runner, core."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from kvtrace.tracer.clock import SYSTEM_CLOCK, Clock

from .batch import Runner
from .choose import make_runner
from .config import EngineConfig
from .device import device_name
from .errors import ConfigError
from .lean_runner import Limits
from .loop import EngineCore
from .model import LoadedModel
from .records import EngineEvent
from .state import EngineInfo, Memory
from .storage import Storage
from .swap.choose import make_mover
from .swap.contract import Mover

EventListener = Callable[[EngineEvent], None]
HostListener = Callable[[int, float], None]


class CoreParts(NamedTuple):
    """An engine without a thread of its own: call ``core.step()``, and ``mover.close()`` in the end."""

    core: EngineCore
    storage: Storage
    mover: Mover
    runner: Runner


def build_core(
    model: LoadedModel,
    config: EngineConfig,
    clock: Clock = SYSTEM_CLOCK,
    *,
    listener: EventListener | None = None,
    on_copy_done: Callable[[], None] | None = None,
    on_host_whole: HostListener = lambda pinned, seconds: None,
) -> CoreParts:
    """The real core over the real model, for whoever steps it.

    Args:
        model: the model to run.
        config: sizes and policy.
        clock: where the core's instants come from.
        listener: hears every event, in the thread that steps.
        on_copy_done: called in the mover's thread when copies ended.
        on_host_whole: told, in another thread, when a GPU's whole host tier is there: bytes pinned, and seconds that took.

    Raises:
        ConfigError: the sizes do not fit the model, the memory or the device.
    """
    _refuse_misfits(model, config)
    if config.pipelined is None:
        # On the CPU a launch is the computation itself: there is nothing to plan beside it.
        config = replace(config, pipelined=model.device.type != "cpu")
    host_blocks = config.host_blocks if config.policy.uses_host else 0
    storage = Storage(
        model.geometry,
        config.device_blocks,
        host_blocks,
        device=model.device,
        dtype=model.dtype,
        on_host_whole=on_host_whole,
    )
    # The model is compiled meanwhile, so that most often all of it is there before the first request.
    storage.start_pinning()
    info = EngineInfo(
        model=model.model_id,
        device=str(model.device),
        weights_bytes=model.weights_bytes,
        memory=MemoryWatch(model, storage),
        ready_host_blocks=lambda: storage.ready_host_blocks,
        device_name=device_name(str(model.device)),
    )
    try:
        # Before the mover has a thread: nothing may copy while device graphs are captured.
        runner = make_runner(model, storage, Limits(config.slots, config.step_tokens, config.context_tokens))
        mover = make_mover(storage, on_copy_done)
    except BaseException:
        storage.close()
        raise
    core = EngineCore(config, model.geometry, runner, mover, clock, info, listener)
    return CoreParts(core, storage, mover, runner)


def _refuse_misfits(model: LoadedModel, config: EngineConfig) -> None:
    if model.device.type not in ("cpu", "cuda"):
        raise ConfigError(f"the model is on {model.device}: the engine runs on cpu or cuda (ROCm's name as well)")
    if config.context_tokens > model.context_tokens:
        raise ConfigError(
            f"context_tokens is {config.context_tokens}, but {model.model_id} was trained for {model.context_tokens}; "
            "give no more than that"
        )


class MemoryWatch:
    """What the device and the host hold, for snapshots; the device is asked at most once a second."""

    def __init__(self, model: LoadedModel, storage: Storage) -> None:
        self._storage = storage
        self._device = storage.pool.device
        self._known_bytes = model.weights_bytes + storage.device_bytes.numel()
        self._total: int | None = None
        self._other: int | None = None
        self._asked = -math.inf

    def __call__(self) -> Memory:
        """The figures as of a moment ago."""
        now = time.monotonic()
        if self._device.type != "cpu" and now - self._asked >= 1.0:
            self._asked = now
            free, self._total = torch.cuda.mem_get_info(self._device)
            self._other = max(0, self._total - free - self._known_bytes)
        return Memory(self._total, self._other, self._storage.pinned_bytes)
