"""The engine without threads: requests and signals in, one step at a time, tokens out. Torch-free.

A step: note the copies that ended, plan memory and hand out blocks (:mod:`.admission`), submit the copies that follow, wait for
the oldest step on the device and read it, launch the next one (:mod:`.forward`), submit the copies of what was filled. All but the
launch takes its time while the device computes: it has a step to do and one that waits behind it. Not thread-safe: one thread
makes all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from kvtrace.tracer.clock import Clock
from kvtrace.tracer.signals import Signal

from . import state
from .admission import Admission
from .batch import Chunk, Runner
from .config import EngineConfig
from .errors import QueueFull, RequestRefused
from .events import EventLog
from .forecast import Forecasts
from .forward import Forward, Outcome
from .geometry import KVGeometry
from .integrity import check
from .meters import LinkMeter, Tally
from .outlook import Outlooks
from .parking import Parking
from .past import Past
from .prefix import block_key, extend_keys, root_key
from .records import EngineEvent, Snapshot
from .requests import Requests
from .sequence import Sampling, Sequence
from .sessions import Sessions, Transition
from .swap.contract import Direction, Mover
from .tiers import TieredCache
from .wording import counted

_GROWS_NS: Final = 2_000_000_000
"""A host tier of which no further slot has come for so long does not grow any more."""

_WAIT_S: Final = 0.05
"""Longest wait for a copy when nothing can run: new requests and signals are looked at that often."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought: new output tokens with their sequences' ids, the sequences it finished, and whether anything moved."""

    tokens: tuple[tuple[int, int], ...]
    finished: tuple[Sequence, ...]
    progressed: bool


class EngineCore:
    """One model's requests, cache and policy, driven by calls of :meth:`step`.

    The same calls with the same clock, runner and mover give the same tokens. ``listener`` hears every event once.
    """

    def __init__(
        self,
        config: EngineConfig,
        geometry: KVGeometry,
        runner: Runner,
        mover: Mover,
        clock: Clock,
        info: state.EngineInfo,
        listener: Callable[[EngineEvent], None] | None = None,
    ) -> None:
        slots = config.host_blocks if config.policy.uses_host else 0
        past = Past(max(65536, 16 * (config.device_blocks + slots)), geometry.block_tokens)
        tally = Tally()
        self._host_slots, self._ready = slots, info.ready_host_blocks or (lambda: slots)
        self.cache = TieredCache(config.device_blocks, min(slots, self._ready()), geometry.block_tokens)
        self.cache.placement.host_grows = len(self.cache.placement.host.slots) < slots
        link = LinkMeter()
        self.sessions = Sessions(int(config.signal_ttl_s * 1e9), forecasts=Forecasts.load(config.forecast))
        self.events = EventLog(listener)
        self._outlooks = Outlooks(config, geometry, self.cache, self.sessions, link, tally)
        self._parking = Parking(
            config.policy, self.cache, self.sessions, self.events, geometry.block_bytes, self._outlooks
        )
        self._requests = Requests(self.cache, self.sessions, self._parking, past, tally)
        self._forward = Forward(
            config, runner, clock, self._requests, self.cache, self._parking, self.sessions, past, tally
        )
        self._forward.mark, self._forward.fence, self._forward.wait = mover.mark, mover.fence, mover.wait
        self._forward.collect = self._collect
        self._admission = Admission(
            config,
            geometry,
            clock,
            self.cache,
            self.sessions,
            self._requests,
            self._forward,
            self._parking,
            self._outlooks,
        )
        self._records = state.AgentRecords(self.sessions, self._requests.live, self.cache, self.events, geometry)
        self._config, self._geometry, self._info = config, geometry, info
        self._mover, self._clock = mover, clock
        self._past, self._tally, self._link = past, tally, link
        self._next_id = 0
        self._came = False  # a request that :meth:`step` has not looked at
        self._grown_ns = clock.unix_ns()
        self._step_copies = max(1, config.step_copy_bytes // geometry.block_bytes)
        self._ration = dict.fromkeys(Direction, self._step_copies)
        self.cache.placement.flush = self._submit_copies

    def submit(self, agent: str, tokens: Iterable[int], sampling: Sampling, salt: str | None = None) -> Sequence:
        """Queue a request of ``agent``; its prompt is ``tokens``. Requests with different salts share no blocks.

        Raises:
            RequestRefused: it can never run here; the message says what does not fit into what.
            QueueFull: too many requests wait.
        """
        now = self._clock.unix_ns()
        prompt = list(tokens)
        self._refuse_impossible(agent, len(prompt), sampling, now)
        if len(self._requests.waiting) >= self._config.queue_requests:
            self._let_in()  # several came at once, and nobody has looked for free slots yet
        waiting = len(self._requests.waiting)
        if waiting >= self._config.queue_requests:
            raise QueueFull(
                f"{counted(waiting, 'request')} {'waits' if waiting == 1 else 'wait'} already, as many as may "
                "(queue_requests, `kvtrace serve --queue`): try again when one is done, or let more wait"
            )
        sequence = Sequence(self._next_id, agent, prompt, len(prompt), sampling, now, known=len(prompt))
        self._next_id += 1
        sequence.usage.prompt_tokens = len(prompt)
        sequence.root = root_key(salt)
        shared = self._past.shared(agent, prompt)
        sequence.usage.diverged_tokens = self._past.length(agent) - shared
        sequence.keys = self._known_keys(sequence, shared)
        extend_keys(sequence.keys, prompt, self._geometry.block_tokens, sequence.root)
        self._requests.add(sequence, now)
        self._came = True
        for forgotten in self.sessions.forget_idle():
            self.cache.forget(forgotten)
            self._past.forget(forgotten)
        self._submit_copies()
        return sequence

    def most_output_tokens(self, prompt_tokens: int) -> int:
        """The largest ``max_tokens`` that :meth:`submit` takes with a prompt of this length; below 1 where none is."""
        pool = self._config.device_blocks * self._geometry.block_tokens
        return min(self._config.context_tokens, pool + 1) - prompt_tokens

    def abort(self, sequence_id: int) -> Sequence | None:
        """End a request now, whatever it is doing; what it computed stays cached. ``None`` if it is over already."""
        sequence = self._requests.find(sequence_id)
        if sequence is not None:
            self._requests.finish(sequence, "abort", self._clock.unix_ns())
            self._submit_copies()
        return sequence

    def signal(self, signal: Signal) -> None:
        """Take a tool's start or end; one for an unknown agent is only counted."""
        now = self._clock.unix_ns()
        self._change(self.sessions.apply(signal, now), now)

    def turn_ended(self, agent: str, calls: Mapping[str, str | None]) -> None:
        """Say that a turn of ``agent`` ended in these tool calls (id to tool), or in an answer where there are none."""
        now = self._clock.unix_ns()
        self._change(self.sessions.turn_ended(agent, calls, now), now)

    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do: a request lives, a step is unread or a copy is in flight."""
        live = self._requests.waiting or self._requests.running
        return bool(live or self._forward.in_flight or self._mover.in_flight() or self.cache.placement.outbox)

    def step(self) -> StepResult:
        """Read one forward step and launch the next, or, where nothing can run yet, wait a moment for a copy to end."""
        self._ration = dict.fromkeys(Direction, self._step_copies)
        progressed = self._collect()
        now = self._clock.unix_ns()
        for expired in self.sessions.expire(now):
            self._change(expired, now)
        self._parking.overdue(now)
        self._came = False
        forward = self._forward
        outcome = Outcome()
        progressed |= self._admission.hand_out(outcome)
        self._submit_copies()
        launched = not forward.full and self._launch(outcome)
        if forward.in_flight and (forward.full or not launched):
            outcome.add(forward.read())
            # The device has one step left: whatever else there is to do can be done when it has two.
            self._launch(outcome)
            launched = True
        self._submit_copies()
        if not launched and self._mover.in_flight() and forward.meanwhile is None:
            self._mover.wait(_WAIT_S)
        self._parking.report_losses(self._clock.unix_ns())
        return StepResult(tuple(outcome.tokens), tuple(outcome.finished), progressed or launched)

    def attend(self, meanwhile: Callable[[float], object], on_tokens: Callable[[Mapping[int, int]], object]) -> None:
        """Serve a caller who cannot wait until a step is over.

        Args:
            meanwhile: called with seconds, again and again while :meth:`step` waits for the device; it may take about so long,
                and may make any call but :meth:`step` and :meth:`settle`. Where only copies are left to wait for, the step
                does not wait at all then: the mover's ``on_done`` says when to take another one.
            on_tokens: told the new output tokens by sequence id as soon as they are known; the step's result has them as well.
        """

        def then_admit(timeout_s: float) -> None:
            meanwhile(timeout_s)
            if self._came:
                self._let_in()

        self._forward.meanwhile, self._forward.on_tokens = then_admit, on_tokens

    def watch_steps(self, watch: Callable[[Seq[Chunk]], None]) -> None:
        """Have ``watch`` called with the chunks of every step that is launched from now on."""
        self._forward.on_launch = watch

    def settle(self) -> None:
        """Wait until no copy is left, without computing anything: a run by steps can then go on with equal batches."""
        while self._mover.in_flight() or self.cache.placement.outbox:
            self._ration = dict.fromkeys(Direction, self._step_copies)
            self._submit_copies()
            self._mover.wait(_WAIT_S)
            self._collect()

    def snapshot(self, *, whole: bool = True) -> Snapshot:
        """The engine at this instant; unless ``whole``, some tenths of a second may have passed for agents that do nothing."""
        now = self._clock.unix_ns()
        return Snapshot(
            time_unix_ns=now,
            model=self._info.model,
            device=self._info.device,
            device_name=self._info.device_name,
            block_tokens=self._geometry.block_tokens,
            policy=str(self._config.policy),
            tiers=state.tiers(self.cache, self._info, self._geometry.block_bytes),
            link=self._link.link(now),
            agents=self._records.at(now, whole=whole),
            events=tuple(self.events.recent),
            totals=self._tally.totals(self.cache.placement.dropped, self.sessions.unmatched, self.sessions.matched),
        )

    def check(self) -> None:
        """Check all invariants of the bookkeeping; raises :class:`.integrity.IntegrityError`."""
        check(self.cache, self._requests)

    def _known_keys(self, sequence: Sequence, shared: int) -> list[bytes]:
        """The keys of the prompt's first blocks, where its first ``shared`` tokens are those of its agent's last context.

        Hashing them again would be most of the work of a request whose long context has grown a little.
        """
        keys = self._past.keys(sequence.agent, shared)
        same_root = keys and block_key(sequence.root, sequence.tokens[: self._geometry.block_tokens]) == keys[0]
        return keys if same_root else []

    def _refuse_impossible(self, agent: str, prompt: int, sampling: Sampling, now: int) -> None:
        config, most = self._config, prompt + sampling.max_tokens
        pool = config.device_blocks * self._geometry.block_tokens
        asked = f"{prompt} prompt token{'' if prompt == 1 else 's'} and max_tokens {sampling.max_tokens}"
        excess = most - min(config.context_tokens, pool + 1)
        # Clients know by these words that a shorter history would be taken.
        advice = (
            f"the prompt is too long by {excess}, shorten it or lower max_tokens"
            if excess < prompt
            else "lower max_tokens"
        )
        if prompt < 1 or sampling.max_tokens < 1:
            why = f"{asked}: give at least 1 of each"
        elif most > config.context_tokens:
            why = f"{asked} make {most}, the context is {config.context_tokens}: {advice}"
        elif most - 1 > pool:
            why = f"{asked} need KV for {most - 1} tokens, the whole pool holds {pool}: {advice}, or enlarge the pool"
        else:
            return
        self._parking.refused(agent, most * self._geometry.token_bytes, why, now)
        raise RequestRefused(why)

    def _launch(self, outcome: Outcome) -> bool:
        """Launch the next step if there is anything to compute, and nothing of it needs a step to be read before."""
        forward = self._forward
        chunks = [] if forward.wants_reading else forward.chunks(self._clock.unix_ns())
        if chunks:
            outcome.add(forward.launch(chunks))
        return len(chunks) > 0

    def _let_in(self) -> None:
        """Give a request that came in the middle of a step what is free, so that its KV is on its way before the next one."""
        self._came = False
        if self._admission.let_in():
            self._submit_copies()

    def _change(self, transition: Transition | None, now: int) -> None:
        # An agent whose request still runs is not parked under it; the request's end asks the policy again.
        if transition is not None and transition.agent not in self._requests.live:
            self._parking.changed(transition, now)
            self._submit_copies()

    def _submit_copies(self) -> None:
        """Hand over copies. Most need not wait for the steps in flight.

        What leaves was written by steps that were read, and what comes goes where, most often, only steps looked that are over.
        """
        copies = self.cache.placement.outbox.take(self._ration)
        if not copies:
            return
        blocks, (settled, over) = self.cache.placement.device.blocks, self._forward.settled
        leaving = [copy for copy in copies if copy.direction is Direction.OUT]
        coming = [copy for copy in copies if copy.direction is Direction.IN]
        late = [copy for copy in coming if blocks[copy.device_block].used > settled]
        if late:
            coming = [copy for copy in coming if blocks[copy.device_block].used <= settled]
        behind = max((blocks[copy.device_block].used for copy in late), default=0)
        for some, after in ((coming, over), (late, self._forward.mark_of(behind)), (leaving, self._forward.written)):
            if some:
                self._mover.submit(some, after)

    def _open_host(self) -> None:
        """Use the host slots whose memory has come meanwhile, first of all for what had found none."""
        placement = self.cache.placement
        before = len(placement.host.slots)
        if before < self._host_slots:
            placement.host.open(min(self._host_slots, self._ready()))
            now = self._clock.unix_ns()
            if len(placement.host.slots) > before:
                self._grown_ns = now
                self.cache.park_again()
            # Memory that has not come for so long may never come: nobody waits for it any more.
            growing = now - self._grown_ns < _GROWS_NS
            placement.host_grows = growing and len(placement.host.slots) < self._host_slots

    def _collect(self) -> bool:
        """Take the copies that ended off the books; requests that waited for their last one may run."""
        self._open_host()
        done = self._mover.poll()
        if not done:
            return False
        now = self._clock.unix_ns()
        self.cache.complete(done)
        self._link.copied([one for one in done if one.error is None], now, self._geometry.block_bytes)
        ended = {one.copy.id: one for one in done}
        self._requests.arrived(ended, now)
        self._parking.copied(ended, now)
        return True
