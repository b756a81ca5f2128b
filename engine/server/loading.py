"""From settings to a running engine: load the model, size the pools, start. Runs in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ..config import EngineConfig
from ..errors import ConfigError, EngineError, ModelError
from .service import Service
from .settings import ServerSettings

if TYPE_CHECKING:
    from ..model import LoadedModel
    from ..sizing import Pools

PhaseListener = Callable[[str, float], None]

_LEAST_CONTEXT: Final = 2048
_GPU_STEP_TOKENS: Final = 1024
_GPU_MIXED_STEP_TOKENS: Final = 256
"""Measured on an H200. By their data sheets other cards are alike: up to 206 rows there, 247 on an MI300X and about 300 on an RX
9070 XT a product takes as long as reading its weights does."""


@dataclass(frozen=True, slots=True)
class Started:
    """What runs now, for who started it."""

    model_id: str
    device: str
    context_tokens: int
    vram_tokens: int
    host_tokens: int
    policy: str
    block_tokens: int
    seconds: float


class Phases:
    """Tells the service and a listener what is being done, and how long each thing took."""

    def __init__(self, service: Service, listener: PhaseListener) -> None:
        self._service = service
        self._listener = listener
        self._started = time.monotonic()
        self._phase: str | None = None

    def enter(self, phase: str) -> None:
        """The phase before is over."""
        self.leave()
        self._phase, self._started = phase, time.monotonic()
        self._service.entered(phase)

    def leave(self) -> None:
        """No phase follows."""
        if self._phase is not None:
            self._listener(self._phase, time.monotonic() - self._started)
        self._phase = None


def start_engine(service: Service, listener: PhaseListener) -> Started:
    """Load, size and start everything; the service answers requests when this returns.

    Args:
        service: gets phases and the engine.
        listener: told each phase's name and seconds when it is over; in another thread when the host tier is pinned.

    Raises:
        EngineError: what is missing or does not fit, and what to try.
    """
    settings, phases = service.settings, Phases(service, listener)
    phases.enter("importing torch and transformers")
    import torch

    from ..api import Engine
    from ..device import device_name
    from ..model import load_model

    device = _device(settings.device)
    try:
        model = load_model(settings.source, device=device, block_tokens=settings.block_tokens, on_phase=phases.enter)
        phases.enter("making the KV pools" if device == "cpu" else "making the KV pools, compiling kernels")
        config, pools = configure(settings, model)
        engine = Engine.start(model, config, on_host_whole=partial(_tell_pinned, listener))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(_out_of_memory(settings, device, error)) from error
    phases.leave()
    service.opened(engine, model, config)
    block, card = model.geometry.block_tokens, device_name(device)
    return Started(
        model_id=model.model_id,
        device=device if card is None else f"{device} ({card})",
        context_tokens=config.context_tokens,
        vram_tokens=pools.device_blocks * block,
        host_tokens=pools.host_blocks * block if config.policy.uses_host else 0,
        policy=config.policy.value,
        block_tokens=block,
        seconds=time.monotonic() - service.started_monotonic,
    )


def configure(settings: ServerSettings, model: LoadedModel) -> tuple[EngineConfig, Pools]:
    """The engine's sizes. A context that nobody asked for is as long as the model's own, or as what fits.

    Raises:
        ConfigError: it does not fit.
    """
    from ..sizing import plan_pools

    kv_host = settings.kv_host_bytes if settings.policy.uses_host else 0
    context = settings.context_tokens or model.context_tokens

    def plan(tokens: int) -> Pools:
        return plan_pools(
            model.geometry,
            model.weights_bytes,
            str(model.device),
            settings.kv_vram_bytes,
            kv_host,
            tokens,
            settings.slots,
        )

    try:
        pools = plan(context)
    except ConfigError:
        if settings.context_tokens is not None or context <= _LEAST_CONTEXT:
            raise
        pools = plan(_LEAST_CONTEXT)
        context = min(context, pools.device_blocks * model.geometry.block_tokens)
    step_tokens, mixed_step_tokens = step_sizes(settings, gpu=model.device.type != "cpu")
    config = EngineConfig(
        device_blocks=pools.device_blocks,
        host_blocks=pools.host_blocks,
        slots=settings.slots,
        step_tokens=step_tokens,
        context_tokens=context,
        queue_requests=settings.queue_requests,
        policy=settings.policy,
        forecast=settings.forecast,
        max_agents=settings.max_agents,
        mixed_step_tokens=mixed_step_tokens,
    )
    return config, pools


def step_sizes(settings: ServerSettings, *, gpu: bool) -> tuple[int, int | None]:
    """Most tokens of a step, and of one in which nearly all slots decode; a CPU gains nothing from shorter ones."""
    step = settings.step_tokens or max(_GPU_STEP_TOKENS if gpu else 512, settings.slots)
    return step, settings.mixed_step_tokens or (max(_GPU_MIXED_STEP_TOKENS, 2 * settings.slots) if gpu else None)


def _device(asked: str) -> str:
    import torch

    from ..device import find_device

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise NoGpu(
            "torch finds no GPU; `kvtrace doctor` says what there is. Give --device cpu, or install a build of torch "
            "for your card"
        )
    try:
        find_device(asked)
    except ConfigError as error:
        raise NoGpu(str(error)) from error
    return asked


def _tell_pinned(listener: PhaseListener, pinned: int, seconds: float) -> None:
    from ..device import gib

    listener(f"pinning {gib(pinned)} of host memory, beside the rest", seconds)


class NoGpu(EngineError):
    """A device was asked for, and there is none such."""


def _out_of_memory(settings: ServerSettings, device: str, error: BaseException) -> str:
    """What to tell where an allocation failed although the sizes looked right, or the weights alone did not fit."""
    from ..device import device_memory

    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"{settings.source} does not fit: {device_memory(device).described} ({said}). Stop what holds the memory, give a "
        "smaller --kv-vram or fewer --slots, or choose a smaller model"
    )
