"""Settings of a whole Python process that has an engine to itself: ``kvtrace serve`` and the benches. Torch-free."""

from __future__ import annotations

import atexit
import gc
import sys
from types import TracebackType
from typing import Final

TURN_S: Final = 0.0005

_THRESHOLDS: Final = (3_000, 10, 100)
"""A collection of the newest objects takes a millisecond; one of all that came since the start would take seventeen."""


class own_process:  # noqa: N801 - called like a function, and used in a with statement as one
    """Make threads take turns sooner, and spare the garbage collector what was made so far; call when all is loaded.

    A thread that plans a restore holds Python's lock for a millisecond or two; a thread that hands copies to the device
    must not wait that long for it. And a collection that walks over all of torch and the model stops every thread for
    tens of milliseconds, for nothing: it never frees any of that. Nor are the hundreds of copies of a restore garbage,
    which are what makes collections frequent. None of this is a library's to decide for a host program.

    As a context manager it puts everything back in the end.
    """

    def __init__(self) -> None:
        self._turn_s = sys.getswitchinterval()
        sys.setswitchinterval(TURN_S)
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.collect()
        gc.freeze()
        # Libraries that look at the end for objects nobody freed shall find these freed.
        atexit.register(gc.unfreeze)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setswitchinterval(self._turn_s)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()
