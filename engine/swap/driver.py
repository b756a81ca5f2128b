"""The driver's call for many copies at once, which fills the link whatever the size of each.

``cuMemcpyBatchAsync`` came with CUDA 12.8 and got another signature with 13; ROCm 7.1 has ``hipMemcpyBatchAsync``, but
we have seen nobody use it. So it is used with CUDA, and elsewhere where ``KVTRACE_BATCH_COPIES=1`` asks for it (0 forbids
it), and everywhere only after a few copies each way have brought what they should.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from .streams import Stream

Addresses = NDArray[np.uint64]

ENV_BATCH_COPIES: Final = "KVTRACE_BATCH_COPIES"

_STREAM_ORDER: Final = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read when the stream comes to the copies
_NO_INDEX: Final = ctypes.c_size_t(-1).value

_log = logging.getLogger(__name__)


class BatchCopy(Protocol):
    """Queues copies, each of as many bytes as ``sizes`` says, in any order, between device and pinned memory."""

    def __call__(self, stream: Stream, targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
        """Returns when they are queued on ``stream``.

        Raises:
            RuntimeError: the driver did not take them; some may have been queued all the same.
        """
        ...


class DriverError(RuntimeError):
    """The driver refused a call; the message has its own name for the error."""


class Call(NamedTuple):
    """One form of the call. ``tells``: it says which copy failed. ``attributes``: how many sets of them it takes."""

    name: str
    tells: bool
    attributes: int


CALLS: Final = (
    Call("cuMemcpyBatchAsync_v2", tells=False, attributes=1),
    Call("cuMemcpyBatchAsync", tells=True, attributes=1),
    Call("hipMemcpyBatchAsync", tells=True, attributes=0),  # which supports none
)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. The hints say nothing: the driver knows where an address lies."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


class DriverCopies:
    """:class:`BatchCopy` by the driver.

    Args:
        library: the driver, or what stands for it.
        context: CUDA's context to work in, of a thread that uses the device; threads that are in none are put into it, and those
            in another, which compute on another device, for the time of a call.

    Raises:
        AttributeError: the driver has no such call.
    """

    def __init__(self, library: Any, context: int | None) -> None:
        self._library = library
        self._context = context
        self._form = next((call for call in CALLS if hasattr(library, call.name)), CALLS[0])
        self._call = getattr(library, self._form.name)
        # One set of attributes, which holds from the first copy on.
        attributes, first = ctypes.pointer(_Attributes(order=_STREAM_ORDER)), ctypes.pointer(ctypes.c_size_t(0))
        self._attributes = (attributes, first) if self._form.attributes else (None, None)

    def __call__(self, stream: Stream, targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
        """Queue the copies: a microsecond each. Python's lock is kept, since getting it back could take much longer."""
        before = self._enter()
        handle = ctypes.c_void_p(cast(torch.cuda.Stream, stream).cuda_stream)
        failed = ctypes.c_size_t(_NO_INDEX)
        tail = (ctypes.byref(failed), handle) if self._form.tells else (handle,)
        error = self._call(
            *(ctypes.c_void_p(row.ctypes.data) for row in (targets, sources, sizes)),
            ctypes.c_size_t(len(sizes)),
            *self._attributes,
            ctypes.c_size_t(self._form.attributes),
            *tail,
        )
        self._leave(before)
        which = f"copy {failed.value} of {len(sizes)}" if failed.value != _NO_INDEX else f"{len(sizes)} copies"
        self._check(error, f"{self._form.name}, {which}")

    def _enter(self) -> int | None:
        """Put the thread into the context; another one that it was in."""
        if self._context is None:
            return None
        current = ctypes.c_void_p()
        self._check(self._library.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        if current.value == self._context:
            return None
        self._check(self._library.cuCtxSetCurrent(ctypes.c_void_p(self._context)), "cuCtxSetCurrent")
        return current.value

    def _leave(self, before: int | None) -> None:
        if before is not None:
            self._check(self._library.cuCtxSetCurrent(ctypes.c_void_p(before)), "cuCtxSetCurrent")

    def _check(self, error: int, what: str) -> None:
        if error:
            raise DriverError(f"{what}: {self._error_name(error)} ({error})")

    def _error_name(self, error: int) -> str:
        if not hasattr(self._library, "cuGetErrorName"):
            return "error"
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(error, ctypes.byref(name))
        return (name.value or b"unknown error").decode()


@cache
def batch_copy(device: torch.device) -> BatchCopy | None:
    """The driver's call where it works on ``device``; else ``None``, and the log says why in one line."""
    if device.type != "cuda" or not wanted(os.environ.get(ENV_BATCH_COPIES), hip=torch.version.hip is not None):
        return None
    try:
        copies = DriverCopies(*_driver(device))
    except (OSError, AttributeError):
        _log.info("the driver has no call for many copies at once (that of CUDA 12.8 has): small blocks are staged")
        return None
    return tried(copies, lambda: _arrives(copies, device))


def wanted(asked: str | None, *, hip: bool) -> bool:
    """Whether the call is to be looked for, by what the environment says and where nobody has tried it."""
    return not hip if asked is None else asked == "1"


def tried(copies: BatchCopy, arrives: Callable[[], bool]) -> BatchCopy | None:
    """``copies`` if its try brings what it should; else ``None``, and the log says what came of it."""
    try:
        right, reason = arrives(), "it brought something else"
    except Exception as error:  # whatever it is, there is the other way
        right, reason = False, str(error)
    if not right:
        _log.warning("the driver's call for many copies at once does not work (%s): small blocks are staged", reason)
        return None
    return copies


def _driver(device: torch.device) -> tuple[Any, int | None]:
    """The driver's library, and torch's context on ``device``, where such a thing is."""
    if torch.version.hip is not None:
        bundled = Path(torch.__file__).parent / "lib" / "libamdhip64.so"
        return ctypes.PyDLL(str(bundled) if bundled.exists() else bundled.name), None
    library, context = ctypes.PyDLL("libcuda.so.1"), ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).synchronize()  # there is a context now
        library.cuCtxGetCurrent(ctypes.byref(context))
    return library, context.value


def _arrives(copies: BatchCopy, device: torch.device) -> bool:
    """Send rows of odd lengths to the device and back, in another order, on a stream of their own."""
    words = 1 << 12
    sent = torch.randint(1, 1 << 62, (words,), dtype=torch.int64).pin_memory()
    back = torch.zeros(words, dtype=torch.int64, pin_memory=True)
    there = torch.zeros(words, dtype=torch.int64, device=device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    link = cast(Stream, stream)
    starts = np.array([0, 8, 72, 1000, 1001, 2500, words], dtype=np.uint64) * np.uint64(8)
    sizes, at = np.diff(starts), starts[:-1]
    for target, source in ((there, sent), (back, there)):
        copies(link, at + np.uint64(target.data_ptr()), at + np.uint64(source.data_ptr()), sizes)
        at, sizes = np.ascontiguousarray(at[::-1]), np.ascontiguousarray(sizes[::-1])
    stream.synchronize()
    return torch.equal(back, sent)
