"""The caller's end of one request: tokens as they come, and what became of it. Torch-free, thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .errors import EngineError
from .sequence import Sampling, Usage


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request.

    Attributes:
        tokens: the output's token ids, without the stop id.
        text: the output as text, without special tokens.
        finish_reason: ``"stop"``, ``"length"`` or ``"cancelled"``.
        usage: what it cost.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Progress:
    """What a stream had at one instant.

    Attributes:
        tokens: those from the index on that was asked for.
        accepted: the engine took the request; until then it may still refuse it.
        finish: reason and usage, where the request ended well.
        error: what ended it otherwise.
    """

    tokens: list[int]
    accepted: bool
    finish: tuple[str, Usage] | None
    error: EngineError | None


class TokenStream:
    """Iterate for the token ids as they come, or ask for the whole :meth:`result`; any number of threads may do both.

    Each iteration starts at the first token. Both raise the :class:`EngineError` that ended the request, if one did.
    ``sampling`` is what its tokens are chosen by.
    """

    def __init__(
        self,
        agent: str,
        decode: Callable[[Sequence[int]], str],
        on_cancel: Callable[[TokenStream], None],
        sampling: Sampling | None = None,
    ) -> None:
        self.agent = agent
        self.sampling = sampling or Sampling()
        self._decode = decode
        self._on_cancel = on_cancel
        self._changed = threading.Condition()
        self._tokens: list[int] = []
        self._finish: tuple[str, Usage] | None = None
        self._error: EngineError | None = None
        self._accepted = False
        self._watcher: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        """Whether the request is over, whatever its end was."""
        with self._changed:
            return self._over()

    def __iter__(self) -> Iterator[int]:
        index = 0
        while fresh := self._after(index):
            yield from fresh
            index += len(fresh)

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end of the request.

        Args:
            timeout: seconds to wait; ``None`` waits as long as it takes.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
            EngineError: the engine refused it (:class:`RequestRefused`, :class:`QueueFull`) or could not finish it
                (:class:`EngineStopped`).
        """
        with self._changed:
            if not self._changed.wait_for(self._over, timeout):
                raise TimeoutError(f"agent {self.agent}'s request has not ended after {timeout} s")
            self._raise_error()
            assert self._finish is not None
            tokens, (reason, usage) = tuple(self._tokens), self._finish
        return Completion(tokens, self._decode(tokens), reason, usage)

    def cancel(self) -> None:
        """Ask for the end of the request; its result then holds the tokens so far. Does not wait."""
        if not self.done:
            self._on_cancel(self)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have ``watcher`` called after each change from now on, in the thread that made it: it must only pass on.

        For who cannot wait in a thread, such as an event loop: :meth:`progress` then tells what there is.
        """
        with self._changed:
            self._watcher = watcher
        watcher()

    def progress(self, index: int) -> Progress:
        """What there is now, tokens from ``index`` on; never waits."""
        with self._changed:
            return Progress(self._tokens[index:], self._accepted, self._finish, self._error)

    def accept(self) -> None:
        """Note that the request was taken; called by the engine alone."""
        with self._changed:
            self._accepted = True
            self._notify()

    def push(self, tokens: Sequence[int]) -> bool:
        """Append output; whether it is the first. Called by the engine alone."""
        with self._changed:
            first = not self._tokens
            self._tokens.extend(tokens)
            self._notify()
        return first

    def finish(self, reason: str, usage: Usage) -> None:
        """End well; called by the engine alone. Whatever comes later changes nothing."""
        with self._changed:
            if not self._over():
                self._finish = (reason, usage)
            self._notify()

    def fail(self, error: EngineError) -> None:
        """End with ``error``; called by the engine alone. Whatever comes later changes nothing."""
        with self._changed:
            if not self._over():
                self._error = error
            self._notify()

    def _after(self, index: int) -> list[int]:
        """Wait for tokens from ``index`` on; none where the request ended well before."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._tokens) > index or self._over())
            fresh = self._tokens[index:]
            if not fresh:
                self._raise_error()
            return fresh

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._watcher is not None:
            self._watcher()

    def _over(self) -> bool:
        return self._finish is not None or self._error is not None

    def _raise_error(self) -> None:
        if self._error is not None:
            # A new exception each time: several threads may raise it, and a traceback belongs to one of them.
            raise type(self._error)(*self._error.args) from self._error
