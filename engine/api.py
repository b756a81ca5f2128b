"""The engine as programs use it: requests from any thread, one thread that steps the core, tokens as they come."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self, cast

from kvtrace.tracer.clock import SYSTEM_CLOCK, Clock
from kvtrace.tracer.signals import Signal

from .asked import check_sampling, checked_tokens
from .build import EventListener, HostListener, build_core
from .chooser import with_chooser
from .config import EngineConfig
from .errors import EngineError, EngineStopped
from .loop import StepResult
from .model import LoadedModel, Message, encode_chat
from .records import EngineEvent, Snapshot
from .sequence import Sampling
from .stream import TokenStream
from .wording import counted

SIGNALS_QUEUED: Final = 4096  # most signals that wait for the loop; one more is dropped and counted
_TICK_S: Final = 0.25  # an idle loop looks up this often: overdue tool calls expire, rates fall
_LET_GO_S: Final = 0.00005  # whoever waits for a first token gets Python's lock before the books of its step are kept
_PUBLISH_S: Final = 0.1
_PUBLISH_CHEAP_S: Final = 0.002  # a snapshot of about two hundred agents
_PUBLISH_SHARE: Final = 0.1  # most of the loop's time that making snapshots may take

_log = logging.getLogger(__name__)


class Engine:
    """A running engine. Every method may be called from any thread; none but :meth:`drain` and :meth:`close` waits.

    Use as a context manager, or :meth:`close` it in the end. One thread owns the core; everything else reaches it
    as a command in its inbox, in the order given.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        clock: Clock = SYSTEM_CLOCK,
        on_host_whole: HostListener = lambda pinned, seconds: None,
    ) -> None:
        self._model = model
        self._vocabulary = int(model.model.get_input_embeddings().num_embeddings)
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken = False
        self._still = False
        self._closing = False
        self._stopped: EngineStopped | None = None
        self._signals_waiting = 0
        self._dropped_signals = 0
        self._open: set[TokenStream] = set()
        self._streams: dict[int, TokenStream] = {}
        self._listeners: list[EventListener] = []
        self._failed_listeners: set[int] = set()
        self._parts = build_core(
            model, config, clock, listener=self._tell, on_copy_done=self._wake, on_host_whole=on_host_whole
        )
        self._core = self._parts.core
        self._core.attend(self._meanwhile, self._hand_over)
        self._snapshot = self._core.snapshot()
        self._publish_after = self._publish_took = 0.0
        self._thread = threading.Thread(target=self._run, name="kvtrace-engine", daemon=True)
        self._thread.start()

    @classmethod
    def start(
        cls,
        model: LoadedModel,
        config: EngineConfig,
        clock: Clock = SYSTEM_CLOCK,
        on_host_whole: HostListener = lambda pinned, seconds: None,
    ) -> Self:
        """Build the core over ``model`` and start its thread.

        A GPU's host tier is pinned beside that and, if it is large, beside the first requests: ``on_host_whole`` is told,
        in another thread, how many bytes are pinned and after how many seconds.

        Raises:
            ConfigError: the sizes do not fit the model, the memory or the device.
        """
        return cls(model, config, clock, on_host_whole)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Called by everybody

    def submit(
        self,
        agent_id: str,
        prompt: Sequence[int] | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        salt: str | None = None,
    ) -> TokenStream:
        """Ask for the continuation of ``prompt``.

        The model's own end ids stop the output besides ``sampling.stop_ids``, unless ``ignore_eos`` is set. What
        only the core can know to be impossible (length, a full queue) is raised by the stream.

        Args:
            agent_id: owner of the growing context; what ``kvtrace.tracer.agent`` gives as its id.
            prompt: token ids, or messages for the model's chat template.
            sampling: how to choose tokens; greedy unless given.
            salt: requests with different salts never share cached KV, so that none can tell what another one said.

        Raises:
            RequestRefused: a token id or a sampling setting is out of range.
            ModelError: messages were given, and the model's chat template cannot render them.
            EngineStopped: the engine was closed or has failed.
        """
        sampling = sampling or Sampling()
        check_sampling(sampling, self._vocabulary)
        if not sampling.ignore_eos:
            sampling = replace(sampling, stop_ids=(*sampling.stop_ids, *self._model.stop_ids))
        tokens = self._tokens(prompt)
        stream = TokenStream(agent_id, self._decode, self._cancel, with_chooser(sampling, tokens))
        self._command(partial(self._submit, stream, tokens, salt), stream)
        return stream

    def signal(self, signal: Signal) -> None:
        """Take a tool's start or end; a sink for ``kvtrace.tracer.subscribe``. Never blocks and never raises."""
        with self._changed:
            if self._stopped is not None or self._closing:
                return
            if self._signals_waiting < SIGNALS_QUEUED:
                self._signals_waiting += 1
                self._inbox.append(partial(self._signal, signal))
                self._changed.notify_all()
                return
            self._dropped_signals += 1
            first = self._dropped_signals == 1
        if first:
            _log.warning("more than %d tool signals wait for the engine; further ones are dropped", SIGNALS_QUEUED)

    def turn_ended(self, agent_id: str, calls: Mapping[str, str | None] | Sequence[str] = ()) -> None:
        """Say that a turn of the agent ended in these tool calls, or in an answer where there are none.

        ``calls`` are the ids the model's response gave them, with the tools' names where known.

        Raises:
            EngineStopped: the engine was closed or has failed.
        """
        named = dict(calls) if isinstance(calls, Mapping) else dict.fromkeys(calls)
        self._command(partial(self._core.turn_ended, agent_id, named))

    def state(self) -> Snapshot:
        """The engine as of a moment ago; whatever finished a request is in it before that request's stream ends.

        With a thousand agents or more it may be some tenths of a second old, and lack the end of a request as well, since making it
        takes its time.
        """
        return self._snapshot

    @property
    def failure(self) -> str | None:
        """Why the engine's loop ended by itself; ``None`` while it runs, and after :meth:`close`."""
        return str(self._stopped) if self._stopped is not None and not self._closing else None

    @property
    def dropped_signals(self) -> int:
        """Signals that found the queue full."""
        return self._dropped_signals

    def on_event(self, callback: EventListener) -> None:
        """Have ``callback`` called with every event from now on, in the engine's thread: it must be quick.

        What it raises is logged the first time and otherwise ignored.
        """
        with self._changed:
            self._listeners = [*self._listeners, callback]

    def drain(self, timeout: float | None = None, *, copies: bool = False) -> None:
        """Wait until no request is open and, with ``copies``, every signal is taken and no KV moves any more.

        Raises:
            TimeoutError: some still are after ``timeout`` seconds, or KV still moves.
            RuntimeError: an event listener called it: the engine's thread cannot wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("an event listener cannot wait for the engine's requests: call drain() elsewhere")
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._open and (not copies or (self._still and not self._inbox)), timeout
            ):
                raise TimeoutError(f"open after {timeout} s: {counted(len(self._open), 'request')}; or KV moves")

    def close(self) -> None:
        """End the engine's threads; open requests end with :class:`EngineStopped`. Closing again does nothing.

        Waits for the step under way, except in an event listener, which is part of it.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # In the caller's thread

    def _tokens(self, prompt: Sequence[int] | Sequence[Message]) -> list[int]:
        if prompt and isinstance(prompt[0], Mapping):
            return encode_chat(self._model.tokenizer, cast("Sequence[Message]", prompt))
        return checked_tokens(cast("Sequence[int]", prompt), self._vocabulary)

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._model.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _cancel(self, stream: TokenStream) -> None:
        with self._changed:
            self._inbox.append(partial(self._abort, stream))
            self._changed.notify_all()

    def _command(self, command: Callable[[], object], stream: TokenStream | None = None) -> None:
        with self._changed:
            if self._stopped is not None or self._closing:
                raise EngineStopped(*(self._stopped.args if self._stopped else ("the engine was closed",)))
            if stream is not None:
                self._open.add(stream)
            self._inbox.append(command)  # type: ignore[arg-type]
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    # In the engine's thread

    def _run(self) -> None:
        reason = EngineStopped("the engine was closed before the request was done")
        try:
            self._parts.runner.launch(())  # what a runner must do once in the thread that steps
            idle = False
            while self._obey(idle):
                result = self._core.step()
                self._publish(force=bool(result.finished) or not result.progressed)
                self._deliver(result)
                idle = not result.progressed
                if idle and not self._core.has_work():
                    self._rest()
        except BaseException as error:
            _log.exception("the engine's loop failed")
            reason = EngineStopped(f"the engine failed ({type(error).__name__}: {error}); start another one")
        finally:
            self._stop(reason)

    def _obey(self, idle: bool) -> bool:
        """Carry out what waits in the inbox, sleeping before if ``idle``; false when the engine is to end."""
        with self._changed:
            if idle:
                self._changed.wait_for(lambda: self._inbox or self._woken or self._closing, _TICK_S)
            self._woken = False
            commands = self._taken()
            if self._closing:
                return False
        for command in commands:
            command()
        return True

    def _meanwhile(self, timeout_s: float) -> None:
        """Carry out what comes in while a step runs; what it starts or ends there need not wait for the step."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox, timeout_s)
            commands = self._taken()
        for command in commands:
            command()

    def _taken(self) -> list[Callable[[], None]]:
        """What waited in the inbox; with the lock held."""
        self._still = self._still and not self._inbox
        commands = list(self._inbox)
        self._inbox.clear()
        self._signals_waiting = 0
        return commands

    def _submit(self, stream: TokenStream, tokens: list[int], salt: str | None) -> None:
        if stream.done:
            return
        try:
            sequence = self._core.submit(stream.agent, tokens, stream.sampling, salt)
        except EngineError as error:
            stream.fail(error)
            self._forget(stream)
        else:
            self._streams[sequence.id] = stream
            stream.accept()

    def _abort(self, stream: TokenStream) -> None:
        number = next((number for number, other in self._streams.items() if other is stream), None)
        sequence = None if number is None else self._core.abort(number)
        if number is not None and sequence is not None:
            del self._streams[number]
            stream.finish("cancelled", sequence.usage)
            self._forget(stream)

    def _signal(self, signal: Signal) -> None:
        self._core.signal(signal)

    def _hand_over(self, tokens: Mapping[int, int]) -> None:
        """Pass on new output, before the step's end is entered anywhere."""
        streams = [(self._streams.get(number), token) for number, token in tokens.items()]
        firsts = [stream.push([token]) for stream, token in streams if stream is not None]
        if any(firsts):
            time.sleep(_LET_GO_S)

    def _deliver(self, result: StepResult) -> None:
        for sequence in result.finished:
            stream = self._streams.pop(sequence.id, None)
            if stream is None:
                continue
            if sequence.error is not None:
                stream.fail(EngineStopped(f"the step that computed the request failed: {sequence.error}"))
            else:
                stream.finish(sequence.finish_reason or "stop", sequence.usage)
            self._forget(stream)

    def _rest(self) -> None:
        """Tell who waits in :meth:`drain` that nothing is left to do, unless something has come meanwhile."""
        with self._changed:
            if not self._inbox and not self._still:
                self._still = True
                self._changed.notify_all()

    def _forget(self, stream: TokenStream) -> None:
        with self._changed:
            self._open.discard(stream)
            self._changed.notify_all()

    def _publish(self, *, force: bool) -> None:
        started = time.monotonic()
        # Thousands of agents make a snapshot dearer than a step: then even the end of a request waits for its turn.
        if (force and self._publish_took <= _PUBLISH_CHEAP_S) or started >= self._publish_after:
            worked = time.thread_time()
            self._snapshot = self._core.snapshot(whole=False)
            ended = time.monotonic()
            # Its own work: that others had the processor meanwhile makes it no dearer.
            self._publish_took = time.thread_time() - worked
            self._publish_after = ended + max(_PUBLISH_S, self._publish_took / _PUBLISH_SHARE)

    def _tell(self, event: EngineEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except BaseException:  # sys.exit() in a listener must not end everybody's requests either
                if id(listener) not in self._failed_listeners:
                    self._failed_listeners.add(id(listener))
                    _log.exception("an event listener failed; it is called again, but this is not said again")

    def _stop(self, reason: EngineStopped) -> None:
        self._parts.mover.close()
        with self._changed:
            self._stopped = reason
            self._inbox.clear()
            streams, self._open = self._open, set()
            self._changed.notify_all()
        for stream in streams:
            stream.fail(reason)
