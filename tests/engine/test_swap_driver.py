"""How the driver's call for many copies is made, found and tried, with a driver of this process that moves CPU memory."""

from __future__ import annotations

import ctypes
import logging
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvtrace.engine.swap import driver
from kvtrace.engine.swap.driver import CALLS, BatchCopy, DriverCopies, DriverError, batch_copy, tried, wanted

_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p
_ADDRESSES = ctypes.POINTER(ctypes.c_uint64)
_HEAD = (_POINTER, _POINTER, _POINTER, _SIZE)
_ATTRIBUTES = (ctypes.POINTER(driver._Attributes), ctypes.POINTER(_SIZE), _SIZE)
NEWER = ctypes.CFUNCTYPE(ctypes.c_int, *_HEAD, *_ATTRIBUTES, _POINTER)
OLDER = ctypes.CFUNCTYPE(ctypes.c_int, *_HEAD, *_ATTRIBUTES, ctypes.POINTER(_SIZE), _POINTER)
NAMES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
ENTERS = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
TELLS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_POINTER))
NEW, OLD, HIP = (call.name for call in CALLS)
STREAM: Any = SimpleNamespace(cuda_stream=0x7F00_1234_5678)


class Driver:
    """Takes the call as C code does, by its declared types, and copies at once; ``refuses`` a copy of so many bytes."""

    def __init__(self, form: str, *, refuses: int = 0, error: int = 801) -> None:
        self.calls: list[tuple[int, int, int]] = []
        self.contexts: list[int] = []
        self.current: int | None = None
        self._refuses, self._error = refuses, error
        if form == HIP:
            self.hipMemcpyBatchAsync = OLDER(self._older)
            return
        if form == NEW:
            self.cuMemcpyBatchAsync_v2 = NEWER(self._newer)
        self.cuMemcpyBatchAsync = OLDER(self._older)
        self.cuGetErrorName = NAMES(self._name)
        self.cuCtxSetCurrent = ENTERS(self._enter)
        self.cuCtxGetCurrent = TELLS(self._tell)

    def _newer(self, *arguments: Any) -> int:
        return self._copy(arguments[:7], arguments[7], None)

    def _older(self, *arguments: Any) -> int:
        return self._copy(arguments[:7], arguments[8], arguments[7])

    def _copy(self, arguments: Any, stream: int, failed: Any) -> int:
        rows, (count, attributes, first, sets) = arguments[:3], arguments[3:]
        targets, sources, sizes = (ctypes.cast(row, _ADDRESSES) for row in rows)
        self.calls.append((count, stream, sets))
        if sets:
            assert (attributes[0].order, attributes[0].flags, first[0]) == (1, 0, 0)
        for index in range(count):
            if sizes[index] == self._refuses:
                if failed is not None:
                    failed[0] = index
                return self._error
            ctypes.memmove(targets[index], sources[index], sizes[index])
        return 0

    def _enter(self, context: int) -> int:
        self.contexts.append(context)
        self.current = context
        return 0

    def _tell(self, context: Any) -> int:
        context[0] = self.current
        return 0

    @staticmethod
    def _name(error: int, name: Any) -> int:
        name[0] = b"CUDA_ERROR_NOT_SUPPORTED"
        return 0


def _rows() -> tuple[torch.Tensor, torch.Tensor, list[np.ndarray[Any, np.dtype[np.uint64]]]]:
    """Two tensors, and the addresses and sizes of three copies from the second to the first."""
    target, source = torch.zeros(300, dtype=torch.uint8), torch.arange(300, dtype=torch.int64).to(torch.uint8)
    starts, sizes = np.array([200, 0, 70], dtype=np.uint64), np.array([100, 64, 1], dtype=np.uint64)
    return target, source, [starts + np.uint64(target.data_ptr()), starts + np.uint64(source.data_ptr()), sizes]


@pytest.mark.parametrize(("form", "attributes"), [(NEW, 1), (OLD, 1), (HIP, 0)])
def test_all_copies_go_by_one_call_in_the_order_of_the_stream(form: str, attributes: int) -> None:
    library = Driver(form)
    target, source, rows = _rows()
    DriverCopies(library, None)(STREAM, *rows)
    assert library.calls == [(3, STREAM.cuda_stream, attributes)]
    expected = torch.zeros_like(source)
    for part in (slice(200, 300), slice(0, 64), slice(70, 71)):
        expected[part] = source[part]
    assert torch.equal(target, expected)


def test_the_attributes_are_laid_out_as_the_driver_has_them() -> None:
    assert ctypes.sizeof(driver._Attributes) == 24
    assert [getattr(driver._Attributes, name).offset for name in ("order", "source_hint", "target_hint", "flags")] == [
        0,
        4,
        12,
        20,
    ]


def test_a_thread_is_put_into_the_devices_context_once() -> None:
    library = Driver(NEW)
    copies = DriverCopies(library, 77)
    _target, _source, rows = _rows()
    for _ in range(3):
        copies(STREAM, *rows)
    assert library.contexts == [77]


def test_a_thread_that_is_in_another_devices_context_is_there_again_afterwards() -> None:
    library = Driver(NEW, refuses=64)
    library.current = 5
    _target, _source, rows = _rows()
    with pytest.raises(DriverError):
        DriverCopies(library, 77)(STREAM, *rows)
    assert (library.contexts, library.current) == ([77, 5], 5)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (NEW, "3 copies: CUDA_ERROR_NOT_SUPPORTED (801)"),
        (OLD, "copy 1 of 3: CUDA_ERROR_NOT_SUPPORTED (801)"),
        (HIP, "copy 1 of 3: error (801)"),
    ],
)
def test_a_refusal_names_the_drivers_error_and_the_copy_where_the_driver_tells(form: str, says: str) -> None:
    copies = DriverCopies(Driver(form, refuses=64), None)
    _target, _source, rows = _rows()
    with pytest.raises(DriverError, match=re.escape(f"{form}, {says}")):
        copies(STREAM, *rows)


def test_a_driver_without_the_call_is_found_out_at_once() -> None:
    with pytest.raises(AttributeError):
        DriverCopies(SimpleNamespace(), None)


@pytest.mark.parametrize("form", [NEW, OLD, HIP])
def test_a_call_that_brings_every_byte_is_taken(form: str) -> None:
    copies = DriverCopies(Driver(form), None)
    assert tried(copies, lambda: _try(copies)) is copies


def test_a_call_that_is_refused_or_brings_something_else_is_not_taken_and_the_log_says_why_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def nothing(stream: object, targets: object, sources: object, sizes: object) -> None:
        """Says that it copied."""

    refused = DriverCopies(Driver(NEW, refuses=64), None)
    for copies, reason in ((nothing, "it brought something else"), (refused, "CUDA_ERROR_NOT_SUPPORTED")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert tried(copies, lambda copies=copies: _try(copies)) is None  # type: ignore[misc]
        (record,) = caplog.records
        assert reason in record.getMessage()


@pytest.mark.parametrize(
    ("asked", "hip", "looks"),
    [(None, False, True), (None, True, False), ("1", True, True), ("0", False, False), ("1", False, True)],
)
def test_the_environment_may_ask_for_the_call_or_forbid_it(asked: str | None, hip: bool, looks: bool) -> None:
    assert wanted(asked, hip=hip) is looks


def test_the_cpu_has_no_driver_to_ask() -> None:
    assert batch_copy(torch.device("cpu")) is None


def _try(copies: BatchCopy) -> bool:
    """The try as on a device, both tensors in CPU memory."""
    target, source, rows = _rows()
    copies(STREAM, *rows)
    return torch.equal(target[:64], source[:64]) and torch.equal(target[200:], source[200:])
