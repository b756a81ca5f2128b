"""What the device benches share: which device, what is said meanwhile, and errors as one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .exits import CommandError, ExitCode


@contextmanager
def bench_device(name: str | None) -> Iterator[Any]:
    """The torch device to measure; what goes wrong within ends the command with a sentence.

    Raises:
        CommandError: torch is missing, there is no such device, or the measurement failed for a reason of its own.
    """
    from kvtrace.engine.errors import EngineError, NotInstalled

    try:
        from kvtrace.engine.device import find_device

        yield find_device(name)
    except NotInstalled as problem:
        raise CommandError(str(problem)) from problem
    except ModuleNotFoundError as problem:
        raise CommandError(f"{problem.name} is missing: pip install 'kvtrace[engine]'") from problem
    except EngineError as problem:
        code = ExitCode.NO_DATA if "no device" in str(problem) else ExitCode.FAILED
        raise CommandError(str(problem), code) from problem


@contextmanager
def phases() -> Iterator[Callable[[str], None]]:
    """A line on stderr that tells what is being done, gone when it is done."""
    from .console import PipedConsole

    with PipedConsole(stderr=True, highlight=False).status("starting") as status:
        yield status.update
