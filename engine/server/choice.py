"""One of a request's outputs: from its stream of tokens to text, to deltas, to the reason of its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import EngineError, EngineStopped
from ..sequence import Usage
from ..stream import TokenStream
from .detokenize import Decode, Detokenizer
from .stops import StopFinder
from .tools.deltas import Delta, OutputParser, PlainParser

if TYPE_CHECKING:
    from ..chooser import TokenLogprobs


@dataclass(slots=True)
class News:
    """What came of an output since the last look. ``logprobs`` are those of ``token_ids``, if they were asked for."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class Choice:
    """Reads one stream; :meth:`advance` never waits. ``finish_reason`` is set at the end of what the client gets.

    ``index`` is the choice's number in the answer; ``first_of_prompt`` says that its prompt is not counted yet.
    ``tokens`` counts what was read.
    """

    def __init__(
        self,
        index: int,
        first_of_prompt: bool,
        stream: TokenStream,
        decode: Decode,
        stops: Sequence[str],
        parser: OutputParser,
    ) -> None:
        self.index = index
        self.first_of_prompt = first_of_prompt
        self.finish_reason: str | None = None
        self.tokens = 0
        self.usage: Usage | None = None
        self._stream = stream
        self._sampling = stream.sampling
        self._text = Detokenizer(decode)
        self._stops = StopFinder(stops)
        self._parser = parser
        self._may_end = bool(stops) or not isinstance(parser, PlainParser)
        self._read = 0

    @property
    def over(self) -> bool:
        """Whether the engine is done with it as well."""
        return self.usage is not None

    @property
    def calls(self) -> dict[str, str]:
        """The tool calls that the output asks for: id to tool."""
        return self._parser.calls

    def accepted(self) -> bool:
        """Whether the engine took the request; raises what it refused it with."""
        progress = self._stream.progress(self._read)
        if progress.error is not None:
            raise _again(progress.error)
        return progress.accepted

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have ``watcher`` called, in the engine's thread, when there is something new."""
        self._stream.watch(watcher)

    def cancel(self) -> None:
        """Let the engine stop; does not wait."""
        self._stream.cancel()

    def advance(self) -> News:
        """What is new.

        Raises:
            EngineError: the engine refused the request or could not finish it.
        """
        progress = self._stream.progress(self._read)
        news = News()
        if self.finish_reason is None:
            if progress.tokens:
                self._take(progress.tokens, news)
            if progress.error is not None:
                raise _again(progress.error)
            if progress.finish is not None and self.finish_reason is None:
                self._end(progress.finish[0], news)
        if progress.error is not None:
            # What the client gets is complete; that its cancelled rest failed is of no interest.
            self.usage = Usage()
        elif progress.finish is not None:
            self.usage = progress.finish[1]
        return news

    def _take(self, tokens: list[int], news: News) -> None:
        first = self._read
        # How many tokens come at once depends on how busy the server is; where the output ends must not.
        for piece in [[token] for token in tokens] if self._may_end else [tokens]:
            self._read += len(piece)
            news.deltas += self._parser.feed(self._stops.feed(self._text.feed(piece)))
            if self._stops.stopped is not None or self._parser.done:
                news.deltas += self._parser.finish()
                self._close("stop")
                self._stream.cancel()
                break
        news.token_ids = tokens[: self._read - first]
        self.tokens = self._read
        chooser = self._sampling.chooser
        if chooser is not None and self._sampling.logprobs is not None:
            news.logprobs += chooser.logprobs[first : self._read]

    def _end(self, reason: str, news: News) -> None:
        grammar = self._sampling.grammar
        if grammar is not None and grammar.error is not None:
            raise EngineStopped(f"the output could not be held to its grammar: {grammar.error}")
        rest = self._stops.feed(self._text.finish())
        if self._stops.stopped is None:
            rest += self._stops.finish()
        news.deltas += [*self._parser.feed(rest), *self._parser.finish()]
        self._close("stop" if self._stops.stopped is not None else reason)

    def _close(self, reason: str) -> None:
        self.finish_reason = "tool_calls" if reason == "stop" and self._parser.calls else reason


def _again(error: EngineError) -> EngineError:
    """A new exception each time: a traceback belongs to one raise."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error
    return fresh
