"""The runner of the lean decoder: steps launched ahead, decoding under device graphs, sampling on the device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from .batch import UNREAD, Chunk
from .graphs import Capturer, Graph, buckets, faster_products, graphs_wanted, prefill_sizes
from .model.cache import cache_root
from .model.lean import LeanWeights
from .model.lean_forward import LeanDecoder, StepTensors, TokenTensors, Wrap
from .model.skinny_tiles import LayerTilings
from .pieces import Before, Pieces, run_pieces
from .runner import unread_error
from .sampling import choose, sample
from .small_copies import Sender, small_copy
from .stepinputs import Layout, StepInputs, StepViews
from .storage import Storage
from .swap.contract import Fence

_READS: Final = 3
"""Pinned buffers for sampled ids: as many launches may be unread before one has to be waited for."""
_TOKEN_MULTIPLE: Final = 16
"""What steps of prefill without a graph are padded to a multiple of: aligned rows, full tiles."""
_WARM_UP_TOKENS: Final = 512
ENV_COMPILE: Final = "KVTRACE_COMPILE"
"""``0`` leaves the decoder uncompiled: slower steps, but no minute at the first start, and for a torch that cannot."""
_ENV_COMPILED: Final = "TORCHINDUCTOR_CACHE_DIR"

Tilings = Callable[[int], LayerTilings | None]


class Limits(NamedTuple):
    """The largest step: sequences, tokens of all together, and tokens of one sequence with its past."""

    slots: int
    step_tokens: int
    context_tokens: int


class _Chosen(NamedTuple):
    """What a step's head gave: logits ``[rows, vocabulary]`` and the most likely token of each row."""

    logits: Tensor
    tokens: Tensor


class _Read:
    """A place on the host for a step's sampled ids, with the event that says they have come, or that a step without any is over."""

    def __init__(self, rows: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.ids = torch.zeros(rows, dtype=torch.int64, pin_memory=pinned)
        self.event = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self.holder: _Launched | None = None


class _Launched:
    """A step under way; a :class:`~.batch.Pending`."""

    def __init__(self, rows: dict[int, int], read: _Read) -> None:
        self._rows = rows
        self._read = read
        self._tokens: dict[int, int] | None = None

    def done(self) -> bool:
        """Whether the step is over, and its sampled ids have come."""
        event = self._read.event
        if self._tokens is not None or event is None:
            return True
        over: bool = event.query()  # type: ignore[no-untyped-call]
        return over

    def tokens(self) -> dict[int, int]:
        """Wait for the step: the sampled token id of each chunk that asked for one, by sequence id."""
        if self._tokens is None:
            if self._read.event is not None:
                self._read.event.synchronize()
            ids = self._read.ids.tolist()
            self._tokens = {sequence: ids[row] for sequence, row in self._rows.items()}
            self._read.holder = None
        return dict(self._tokens)


class LeanRunner:
    """Computes chunks with the lean decoder over ``storage``'s pool.

    A step in which every chunk has one token decodes: it is padded to one of a few batch sizes, each of which is
    compiled for that shape and, where graphs are used, captured at the start. Any other step takes the path of
    prefill, compiled once for every number of tokens, and captured for some numbers that smaller steps are padded to, in
    as many graphs as a block's bytes have parts: while blocks still arrive, each waits for its own part of them. Nothing in
    :meth:`launch` waits for the device unless a chunk has a chooser, which looks at each token.

    Args:
        weights: the model.
        storage: whose pool holds the KV.
        limits: the largest step.
        wrap: compiles the decoder's functions; what :func:`compiling` gives, or the identity.
        graphs: whether to capture decoding; as :func:`.graphs.graphs_wanted` has it unless given.
        tilings: by batch size, those of the skinny products that decode, ``None`` for the library's own products.
    """

    def __init__(
        self,
        weights: LeanWeights,
        storage: Storage,
        limits: Limits,
        wrap: Wrap,
        *,
        graphs: bool | None = None,
        tilings: Tilings = lambda batch: None,
    ) -> None:
        self._limits = limits
        self._room = max(2, limits.slots)  # two at least, since compiled code makes one row a case of its own
        self._tilings = tilings
        self._device = storage.pool.device
        parts = storage.geometry.parts
        self._last_part = len(parts) - 1
        self._decoder = LeanDecoder(weights, storage.pool, wrap, [part.start for part in parts[1:]])
        self._width = storage.geometry.blocks_for(limits.context_tokens)
        self._buckets = buckets(limits.slots)
        self._sizes = prefill_sizes(limits.step_tokens)
        layouts = [self._prefill_layout(limits.step_tokens), *map(self._decode_layout, self._buckets)]
        self._copy = small_copy(self._device)
        self._send = Sender(self._device, self._copy)
        self._block_tokens = storage.geometry.block_tokens
        self._inputs = StepInputs(layouts, self._block_tokens, self._device, self._copy)
        self._views = {size: self._inputs.views(self._decode_layout(size)) for size in self._buckets}
        self._before = torch.zeros(self._room, dtype=torch.int64, device=self._device)
        self._rows: dict[int, int] = {}
        self._reads = [_Read(self._room, self._device) for _ in range(_READS)]
        self._next_read = 0
        self._thread = 0
        self._graphs: dict[int, Graph[_Chosen]] = {}
        self._prefill_graphs: dict[int, Graph[_Chosen]] = {}
        if graphs_wanted(self._device) if graphs is None else graphs:
            self.capture()

    @torch.inference_mode()
    def capture(self) -> None:
        """Compile and capture every size of step, the largest first, since the others then find room in its memory."""
        capturer = Capturer()
        for tokens in reversed(self._sizes):
            layout = self._prefill_layout(tokens)
            self._inputs.fill(layout, (), {})
            views = self._inputs.views(layout)
            with faster_products(tokens):
                self._prefill_graphs[tokens] = capturer.capture_pieces(partial(self._prefill, views, whole=False))
        for size in reversed(self._buckets):
            self._inputs.fill(self._decode_layout(size), (), {})
            self._graphs[size] = capturer.capture(partial(self._decode, size))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile what prefill needs; nothing is written. Graphs have compiled what decoding needs."""
        self._enter_thread()
        layout = self._prefill_layout(min(_WARM_UP_TOKENS, self._limits.step_tokens))
        views = self._inputs.views(layout)
        for whole in (False, True):
            self._inputs.fill(layout, (), {})
            run_pieces(self._prefill(views, whole=whole))

    def run(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """Write the KV of ``chunks``; the sampled token id of each chunk that asked for one, by sequence id."""
        return self.launch(chunks).tokens()

    @torch.inference_mode()
    def launch(self, chunks: Sequence[Chunk], arrivals: Sequence[Fence] = ()) -> _Launched:
        """Start a step; see :class:`.batch.Runner`.

        Raises:
            ValueError: an unread token that nobody sampled, or a step above the limits. Nothing was started then.
        """
        self._check(chunks)
        if self._thread != get_ident():
            self._enter_thread()
        before, self._rows = self._rows, {}
        read = self._free_read()
        if not chunks:
            self._join(arrivals, self._last_part)
            return _Launched({}, read)
        if all(len(chunk.tokens) == 1 for chunk in chunks):
            rows = {chunk.sequence_id: row for row, chunk in enumerate(chunks) if chunk.sample}
            chosen = self._launch_decode(chunks, before, arrivals)
            sampling = [(row, chunk) for row, chunk in enumerate(chunks) if chunk.sample]
        else:
            sampling = list(enumerate(chunk for chunk in chunks if chunk.sample))
            rows = {chunk.sequence_id: row for row, chunk in sampling}
            chosen = self._launch_prefill(chunks, before, arrivals)
        if rows:
            self._choose(chosen, sampling)
            self._copy(read.ids, self._before)
        self._rows = rows
        launched = _Launched(rows, read)
        read.holder = launched
        if read.event is not None:
            read.event.record()
        return launched

    def _check(self, chunks: Sequence[Chunk]) -> None:
        limits = self._limits
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        if len(chunks) > limits.slots or tokens > limits.step_tokens:
            raise ValueError(
                f"a step of {len(chunks)} sequences and {tokens} tokens; this runner was made for {limits.slots} and "
                f"{limits.step_tokens}"
            )
        for chunk in chunks:
            if chunk.start + len(chunk.tokens) > limits.context_tokens:
                raise ValueError(
                    f"sequence {chunk.sequence_id} reaches position {chunk.start + len(chunk.tokens)}; this runner was "
                    f"made for {limits.context_tokens}"
                )
            if UNREAD in chunk.tokens and chunk.sequence_id not in self._rows:
                raise unread_error(chunk)

    def _enter_thread(self) -> None:
        """Do what a thread must once before it runs steps: choose the device, and make attention's plans, its own too."""
        self._thread = get_ident()
        if self._device.type == "cuda":
            from .attention.gpu import prepare  # Triton comes with the GPU builds of torch

            # A thread starts on the first device, whatever another one chose.
            torch.cuda.set_device(self._device)
            shape, weights = self._decoder.weights.shape, self._decoder.weights
            prepare(
                shape.heads,
                shape.kv_heads,
                shape.head_dim,
                self._block_tokens,
                shape.scale,
                weights.dtype,
                self._device,
                # No whole prompt below takes cuDNN's way: see _launch_prefill.
                self._limits.step_tokens if self._limits.step_tokens > self._sizes[-1] else 0,
            )

    def _free_read(self) -> _Read:
        """The next buffer for sampled ids; who left theirs in it for so long has them read now."""
        read = self._reads[self._next_read]
        self._next_read = (self._next_read + 1) % len(self._reads)
        if read.holder is not None:
            read.holder.tokens()
        return read

    def _join(self, arrivals: Sequence[Fence], part: int) -> None:
        """Have what is launched from now on wait for ``part`` of what arrives: after the last one for all of it."""
        for fence in arrivals:
            fence.join(part if part < self._last_part else None)

    # Decoding

    def _decode_layout(self, size: int) -> Layout:
        return Layout(size, size, self._width)

    def _launch_decode(
        self, chunks: Sequence[Chunk], before: dict[int, int], arrivals: Sequence[Fence] = ()
    ) -> _Chosen:
        size = next(size for size in self._buckets if size >= len(chunks))
        self._inputs.fill(self._decode_layout(size), chunks, before)
        self._join(arrivals, self._last_part)
        graph = self._graphs.get(size)
        return self._decode(size) if graph is None else graph.replay()

    def _decode(self, size: int) -> _Chosen:
        """The kernels of a decoding step, from the inputs' fixed place to :attr:`_before`."""
        views = self._views[size]
        step = StepTensors(*_attention(views), decode=True, whole=False)
        chosen = _Chosen(*self._decoder.decode(self._tokens(views), step, self._tilings(size)))
        self._before[:size].copy_(chosen.tokens)
        return chosen

    # Prefill, and prefill with decoding in one step

    def _prefill_layout(self, tokens: int) -> Layout:
        multiple = -(-tokens // _TOKEN_MULTIPLE) * _TOKEN_MULTIPLE
        padded = next((size for size in self._sizes if size >= tokens), multiple)
        return Layout(padded, self._room, self._width)

    def _launch_prefill(
        self, chunks: Sequence[Chunk], before: dict[int, int], arrivals: Sequence[Fence] = ()
    ) -> _Chosen:
        layout = self._prefill_layout(sum(len(chunk.tokens) for chunk in chunks))
        # The inputs wait for nothing that arrives.
        self._inputs.fill(layout, chunks, before)
        join: Before = partial(self._join, arrivals)
        graph = self._prefill_graphs.get(layout.tokens)
        if graph is not None:
            return graph.replay(join)
        # Attention may take the keys straight from the projections where they are all there is (padding comes
        # last, so no query looks there). Steps of the captured sizes do the same with graphs or without.
        whole = len(chunks) == 1 and chunks[0].start == 0 and layout.tokens not in self._sizes
        return run_pieces(self._prefill(self._inputs.views(layout), whole=whole), join)

    def _prefill(self, views: StepViews, *, whole: bool) -> Pieces[_Chosen]:
        """The kernels of a step of prefill, from the inputs' fixed place to :attr:`_before`, part by part of the blocks."""
        step = StepTensors(*_attention(views), decode=False, whole=whole)
        hidden, delta = yield from self._decoder.forward(self._tokens(views), step, rows=views.rows)
        chosen = _Chosen(*self._decoder.logits(hidden, delta))
        self._before.copy_(chosen.tokens)
        return chosen

    def _tokens(self, views: StepViews) -> TokenTensors:
        return TokenTensors(views.ids, views.source, self._before, views.positions)

    def _choose(self, chosen: _Chosen, sampling: Sequence[tuple[int, Chunk]]) -> None:
        """Replace the most likely tokens by what the chunks ask for, if any asks for something else."""
        if all(chunk.sampling.greedy for _, chunk in sampling):
            return
        rows = self._send([row for row, _ in sampling], self._device)
        chunks, logits = [chunk for _, chunk in sampling], chosen.logits[rows]
        if all(chunk.sampling.chooser is None for chunk in chunks):
            self._before[rows] = choose(logits, chunks, self._send)
        else:
            self._before[rows] = self._send(sample(logits, chunks), self._device)


def _attention(views: StepViews) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return views.write_slots, views.query_starts, views.key_lengths, views.tables


def compiling(options: dict[str, Any] | None = None) -> Wrap:
    """What compiles the decoder's functions: each whole, for the very shapes it is called with.

    Where the environment has ``KVTRACE_COMPILE=0``, what leaves them as they are.
    """
    if os.environ.get(ENV_COMPILE) == "0":
        return lambda function: function
    _keep_compiled_code()
    # One entry for each batch size and for prefill, of each model in this process.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 128)

    def wrap(function: Any) -> Any:
        return torch.compile(function, fullgraph=True, dynamic=False, options=options)

    return wrap


def _keep_compiled_code() -> None:
    """Have compiled code kept among kvtrace's caches; torch's own place for it is lost when the machine restarts."""
    place = Path(os.environ.get(_ENV_COMPILED, ""))
    # torch sets the variable itself, to a folder of this name, when it first asks for it.
    by_torch = place.parent == Path(tempfile.gettempdir()) and place.name.startswith("torchinductor_")
    if place.name and not by_torch:
        return
    kept = cache_root() / "inductor"
    # Where nothing can be kept, the temporary folder will do.
    with suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        os.environ[_ENV_COMPILED] = str(kept)
