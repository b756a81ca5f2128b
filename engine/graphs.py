"""Device graphs: record a step's kernels once, and start them all with one call.

CUDA uses them unless told otherwise. On ROCm captures of attention kernels are known to fault or hang on some cards
(vllm issues 34154 and 39010), so there they are used only on request, and only after a child process has captured
and replayed one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic

import torch

from .errors import ConfigError
from .pieces import Before, Pieces, Result, at_once, next_piece, run_pieces

ENV_GRAPHS: Final = "KVTRACE_DEVICE_GRAPHS"
"""``1`` asks for device graphs, ``0`` forbids them; unset, CUDA uses them and ROCm does not."""
_SELF_TEST_S: Final = 120
_WARM_UPS: Final = 2
_FEWEST_TOKENS: Final = 32
MOST_TOKENS: Final = 2048
"""Tokens of the largest step of prefill that gets a graph. On an H200 such a step takes 50 ms, its launches one by one 40
on a quiet machine and 90 on a busy one; beyond, the device outlasts the host in any case."""

_log = logging.getLogger(__name__)


class Graph(Generic[Result]):
    """A captured call, as one graph or as one for each of its pieces.

    ``result`` is what the call returned: tensors that every :meth:`replay` fills anew.
    """

    def __init__(self, pieces: Sequence[Any], result: Result) -> None:
        self._pieces = pieces
        self.result = result

    def replay(self, before: Before = at_once) -> Result:
        """Start the kernels on the current stream, calling ``before`` ahead of those of each piece."""
        for piece, graph in enumerate(self._pieces):
            before(piece)
            graph.replay()
        return self.result


class Capturer:
    """Captures calls whose graphs share one pool of memory, since no two of them ever run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, call: Callable[[], Result]) -> Graph[Result]:
        """Run ``call`` until all is compiled, then record it; it must read and write fixed places only."""

        def whole() -> Pieces[Result]:
            yield from ()
            return call()

        return self.capture_pieces(whole)

    def capture_pieces(self, call: Callable[[], Pieces[Result]]) -> Graph[Result]:
        """The same for work that can be cut, which becomes a graph for each piece, to be started in their order."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run_pieces(call())
        torch.cuda.current_stream().wait_stream(self._stream)
        # What one piece leaves for the next stays in the generator meanwhile, so no other gets its memory.
        pieces, graphs, over = call(), [], None
        while over is None:
            graph = torch.cuda.CUDAGraph()
            # Other threads may copy or pin meanwhile: only this one must do nothing that a capture forbids.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                over = next_piece(pieces)
            graphs.append(graph)
        return Graph(graphs, over[0])


def buckets(most: int) -> tuple[int, ...]:
    """Batch sizes that get a graph: 1, 2, 4, 8, 16, 24, 32 … up to ``most``, which is always one of them."""
    sizes = [1, 2, 4, *range(8, most, 8)]
    return (*(size for size in sizes if size < most), most)


def prefill_sizes(step_tokens: int) -> tuple[int, ...]:
    """Tokens that steps of prefill are padded to, each of which gets a graph: 32, 48 … 128, 192, 256, 384 and so on.

    Up to ``step_tokens`` rounded up to 16, for aligned rows and full tiles, and to :data:`MOST_TOKENS`. The small ones are
    what an agent that comes back needs: 16 tokens of padding are 4 % of its step. No larger step computes half as much
    again as it was asked for.
    """
    most = -(-min(step_tokens, MOST_TOKENS) // 16) * 16
    powers = [128 << power for power in range(most.bit_length())]
    sizes = sorted([*range(_FEWEST_TOKENS, 128, 16), *powers, *(size + size // 2 for size in powers)])
    return (*(size for size in sizes if size < most), most)


def lt_wins(tokens: int) -> bool:
    """Whether cuBLASLt multiplies by this many rows faster than what torch takes by itself: measured on an H200.

    A layer of Qwen3-8B's shape takes 140.7 µs instead of 152.6 at 192 rows, 115.1 instead of 122.3 at 112, 200.9 instead of
    210.8 at 384; from 512 on both are equal, and at 128 and 256 it is 1 % behind.
    """
    return _FEWEST_TOKENS <= tokens < 512 and tokens not in (128, 256)


@contextmanager
def faster_products(tokens: int) -> Iterator[None]:
    """Within it a step of ``tokens`` is captured with the faster of CUDA's two libraries; on ROCm nothing changes."""
    if torch.version.hip is not None or not torch.cuda.is_available() or not lt_wins(tokens):
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def graphs_wanted(device: torch.device) -> bool:
    """Whether decoding on ``device`` shall use graphs: by the environment, else by what is known to work.

    Raises:
        ConfigError: the environment variable is neither ``0`` nor ``1``.
    """
    if device.type != "cuda":
        return False
    asked = os.environ.get(ENV_GRAPHS)
    if asked not in (None, "", "0", "1"):
        raise ConfigError(f"{ENV_GRAPHS} is {asked!r}; give 1 for device graphs or 0 for none")
    if torch.version.hip is None:
        return asked != "0"
    if asked != "1":
        return False
    reason = self_test()
    if reason is not None:
        _log.warning("device graphs are off: the self-test in a child process %s", reason)
    return reason is None


def self_test(timeout_s: float = _SELF_TEST_S) -> str | None:
    """Capture and replay a small decoding step in a child process, which may crash or hang; what went wrong, if anything."""
    program = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end within {timeout_s:.0f} s"
    if done.returncode:
        return f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return None


def replay_attention(device: str = "cuda") -> None:
    """Capture one call of the attention operator, change its inputs, replay it, and compare with a plain call.

    Raises:
        AssertionError: the replay gave something else.
    """
    from . import attention  # noqa: F401  (defines the operator)

    generator = torch.Generator(device).manual_seed(0)
    query, key, value = torch.randn((3, 2, 4, 64), generator=generator, device=device, dtype=torch.float16)
    pool = torch.randn((8, 1, 2, 4, 16, 64), generator=generator, device=device, dtype=torch.float16)
    slots = torch.tensor([5, 70], device=device)
    starts, lengths = (torch.tensor(one, dtype=torch.int32, device=device) for one in ([0, 1, 2], [6, 23]))
    tables = torch.tensor([[0, 1], [3, 4]], dtype=torch.int32, device=device)

    def call() -> torch.Tensor:
        result: torch.Tensor = torch.ops.kvtrace.paged_attention(
            query, key, value, pool, 0, slots, starts, lengths, tables, 0.125, True
        )
        return result

    graph = Capturer().capture(call)
    query.mul_(0.5)
    lengths.add_(1)
    slots.add_(1)
    replayed = graph.replay().clone()
    torch.testing.assert_close(replayed, call())


if __name__ == "__main__":
    replay_attention()
