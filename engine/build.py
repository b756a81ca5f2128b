"""Put the parts of one engine together: storage, mover, runner, core."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvtrace.tracer.clock import SYSTEM_CLOCK, Clock

from .config import EngineConfig
from .errors import ConfigError
from .loop import EngineCore
from .model import LoadedModel
from .records import EngineEvent
from .runner import TorchRunner
from .state import EngineInfo, Memory
from .storage import Storage
from .swap.thread import ThreadMover

EventListener = Callable[[EngineEvent], None]


class CoreParts(NamedTuple):
    """An engine without a thread of its own: call ``core.step()``, and ``mover.close()`` in the end."""

    core: EngineCore
    storage: Storage
    mover: ThreadMover


def build_core(
    model: LoadedModel,
    config: EngineConfig,
    clock: Clock = SYSTEM_CLOCK,
    *,
    listener: EventListener | None = None,
    on_copy_done: Callable[[], None] | None = None,
) -> CoreParts:
    """The real core over the real model, for whoever steps it.

    Args:
        model: the model to run.
        config: sizes and policy.
        clock: where the core's instants come from.
        listener: hears every event, in the thread that steps.
        on_copy_done: called in the mover's thread when copies ended.

    Raises:
        ConfigError: the sizes do not fit the model, the memory or the device.
    """
    if model.device.type != "cpu":
        raise ConfigError(f"the model is on {model.device}: this version of the engine runs on the CPU only")
    if config.context_tokens > model.context_tokens:
        raise ConfigError(
            f"context_tokens is {config.context_tokens}, but {model.model_id} was trained for {model.context_tokens}; "
            "give no more than that"
        )
    host_blocks = config.host_blocks if config.policy.uses_host else 0
    storage = Storage(model.geometry, config.device_blocks, host_blocks, device=model.device, dtype=model.dtype)
    info = EngineInfo(
        model=model.model_id,
        device=str(model.device),
        weights_bytes=model.weights_bytes,
        memory=lambda: Memory(pinned_bytes=storage.pinned_bytes),
    )
    mover = ThreadMover(storage, on_copy_done)
    core = EngineCore(config, model.geometry, TorchRunner(model.model, storage), mover, clock, info, listener)
    return CoreParts(core, storage, mover)
