"""From the rows of a transcript to records: what every agent's own log has in common.

A transcript is a list of instants, not of spans. A lane, one agent's growing context, turns them into spans by four
rules. A model call lasts from the last thing the model was told (a message, a tool's result, the previous answer) to
the last row of its answer. A tool call lasts from the row that asks for it to the row that answers. A turn lasts from
a person's message to the last row before the next one, and what lies between two turns is the person's. A call that
nobody answered before the model went on is closed at the last row before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..normal import Confidence, Kind, Notes, Process, SpanRecord
from .values import text

QUESTIONS: Final = frozenset(
    {"AskUserQuestion", "ExitPlanMode", "ask_user", "ask_user_question", "request_user_input", "question"}
)
"""Tools that do nothing but wait for a person."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose context a lane is: its agent id, a name for people, and for a sub-agent the parent and the tool call."""

    agent: str
    name: str | None = None
    parent: str | None = None
    parent_call: str | None = None


@dataclass(slots=True)
class Book:
    """Records made so far of one file. ``trace`` keeps span ids of different kinds of source apart.

    Where ids are unique in the world the trace is the same for all files, so that history repeated in a resumed or
    forked session is merged as one span.
    """

    notes: Notes
    trace: str
    process: int = field(init=False)
    made: list[SpanRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = self.notes.process(Process())

    def drain(self) -> Iterator[SpanRecord]:
        """Hand over what was made since the last time."""
        made, self.made = self.made, []
        return iter(made)

    def add(
        self,
        kind: Kind,
        span: str,
        name: str,
        owner: Owner,
        start_ns: int | None,
        end_ns: int | None,
        *,
        call_id: str | None = None,
        error: str | None = None,
        parent_span: str | None = None,
        queued: str | None = None,
        confidence: Confidence = "derived",
        tokens: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Make one record; an agent's run inside its parent's tool call hangs below that call."""
        run = kind == "agent"
        self.made.append(
            SpanRecord(
                source=self.notes.source,
                process=self.process,
                trace_id=self.trace,
                span_id=text(span) or "?",
                parent_span_id=parent_span or (tool_span(owner.parent_call) if run and owner.parent_call else None),
                kind=kind,
                name=text(name) or "(no name)",
                call_id=text(call_id),
                agent_id=text(owner.agent),
                agent_label=None,
                agent_name=text(owner.name),
                parent_agent_id=text(owner.parent) if run else None,
                conversation_id=None,
                start_ns=start_ns,
                end_ns=end_ns,
                first_token_ns=None,
                queued_unix_ns=queued,
                error=text(error),
                confidence=confidence,
                input_tokens=tokens[0],
                output_tokens=tokens[1],
            )
        )

    def link(
        self, parent: Owner, session: str, sub: str, call_id: str, start_ns: int, end_ns: int, name: str = ""
    ) -> None:
        """Say that a tool call of ``parent`` is the sub-agent ``session/sub``, whose rows are in another file.

        The record names the sub-agent by label, not by id: the time between it and the sub-agent's own turns is
        nobody's wait.
        """
        owner = Owner(f"{session}/{sub}", name or "sub-agent", parent.agent, call_id)
        self.add("agent", f"agent:{sub}", owner.name or "", owner, start_ns, end_ns)
        self.made[-1] = self.made[-1]._replace(agent_id=None, conversation_id=text(session), agent_label=text(sub))


def tool_span(call_id: str) -> str:
    """Span id of a tool call, from the id that the model gave it."""
    return f"call:{text(call_id)}"


@dataclass(slots=True)
class _Answer:
    key: str
    start_ns: int
    end_ns: int
    tokens: tuple[int | None, int | None] = (None, None)


@dataclass(slots=True)
class _Call:
    call_id: str
    name: str
    answer: str | None
    start_ns: int
    bound_ns: int | None = None


class Lane:
    """One agent's rows in the order of the file, turned into records of ``book``. Instants are Unix nanoseconds.

    ``is_idle`` holds from an answer without calls, or a stop, until the agent is told something.
    """

    def __init__(self, book: Book, owner: Owner) -> None:
        self.owner = owner
        self.last_ns: int | None = None
        self.told_ns: int | None = None
        self.pending: dict[str, _Call] = {}
        self.is_idle = False
        self._first_ns: int | None = None
        self.book = book
        self._answer: _Answer | None = None
        self._turn: tuple[str, int] | None = None

    def seen(self, at_ns: int) -> None:
        """A row that only shows that the session went on."""
        if self._first_ns is None:
            self._first_ns = at_ns
        if self.last_ns is None or at_ns > self.last_ns:
            self.last_ns = at_ns

    def message(self, at_ns: int, key: str) -> None:
        """A message that begins a turn; ``key`` names it wherever it is repeated."""
        self._end_answer()
        self._end_turn()
        for call in self.pending.values():
            call.bound_ns = call.bound_ns or self.last_ns
        waited_ns = self._first_ns if self.told_ns is None else self.last_ns
        if waited_ns is not None and waited_ns < at_ns:
            self.book.add("human", f"gap:{key}", "next message", self.owner, waited_ns, at_ns)
        self._turn = (key, at_ns)
        self.last_ns = self.told_ns = at_ns
        self.is_idle = False

    def told(self, at_ns: int) -> None:
        """Something other than a message or a result was added to the context."""
        self._end_answer()
        self.told_ns = at_ns
        self.is_idle = False

    def stopped(self, at_ns: int) -> None:
        """A person stopped the agent, or it gave up."""
        self._end_answer()
        self.seen(at_ns)
        self.is_idle = True

    def output(self, at_ns: int, key: str, tokens: tuple[int | None, int | None] = (None, None)) -> None:
        """A row of the answer ``key``; the last one of an answer ends it. Token counts of later rows win."""
        if self._answer is None or self._answer.key != key:
            self._end_answer()
            self._close_unanswered(key)
            self._answer = _Answer(key, at_ns if self.told_ns is None else self.told_ns, at_ns)
        self._answer.end_ns = at_ns
        if tokens != (None, None):
            self._answer.tokens = tokens
        self._work(at_ns, key)
        self.is_idle = not self.pending

    def used(self, tokens: tuple[int | None, int | None]) -> None:
        """Token counts of the answer being written."""
        if self._answer is not None:
            self._answer.tokens = tokens

    def answered(self, start_ns: int, end_ns: int, key: str, tokens: tuple[int | None, int | None]) -> None:
        """A whole answer whose start the source tells itself."""
        self._end_answer()
        self._close_unanswered(key)
        self._answer = _Answer(key, start_ns, end_ns, tokens)
        self._work(end_ns, key)
        self.is_idle = not self.pending

    def call(self, at_ns: int, call_id: str, name: str) -> None:
        """The model asks for a tool."""
        answer = self._answer.key if self._answer else None
        self.pending.setdefault(call_id, _Call(call_id, name, answer, at_ns))
        self.is_idle = False
        self._work(at_ns, call_id)

    def result(
        self, at_ns: int, call_id: str, lasted_ns: int | None = None, error: str | None = None, refused: bool = False
    ) -> None:
        """A tool answers. A length told beside the rows moves the start back where rows were written too late.

        ``refused``: a person said no, so that the tool never ran and the wait was theirs.
        """
        call = self.pending.pop(call_id, None)
        if call is not None:
            start_ns = call.start_ns
            late = lasted_ns is not None and at_ns - lasted_ns < start_ns <= at_ns
            if late and lasted_ns is not None:
                start_ns = at_ns - lasted_ns
                self._answered_by(start_ns, call.start_ns)
            kind: Kind = "human" if refused or call.name in QUESTIONS else "tool"
            self._end_call(call, kind, start_ns, at_ns, error, "derived" if late else "exact")
        self._work(at_ns, call_id)
        self.is_idle = False

    def finish(self) -> None:
        """The file ends here; what is still open stays open."""
        self._end_answer()
        self._end_turn()
        for call in self.pending.values():
            kind: Kind = "human" if call.name in QUESTIONS else "tool"
            self._end_call(call, kind, call.start_ns, call.bound_ns, None, "derived" if call.bound_ns else "exact")
        self.pending.clear()

    def _work(self, at_ns: int, key: str) -> None:
        if self._turn is None:
            self._turn = (key, at_ns if self.last_ns is None else self.last_ns)
        self.told_ns = at_ns
        self.seen(at_ns)

    def _answered_by(self, at_ns: int, row_ns: int) -> None:
        """An answer whose rows were written after its tools ran had ended before they began."""
        if self._answer is not None and self._answer.end_ns >= row_ns:
            self._answer.end_ns = max(self._answer.start_ns, at_ns)

    def _end_answer(self) -> None:
        if self._answer is not None:
            answer, self._answer = self._answer, None
            span = f"answer:{answer.key}"
            self.book.add("model", span, "answer", self.owner, answer.start_ns, answer.end_ns, tokens=answer.tokens)

    def _end_turn(self) -> None:
        if self._turn is not None:
            (key, start_ns), self._turn = self._turn, None
            if self.last_ns is not None and self.last_ns > start_ns:
                self.book.add("agent", f"turn:{key}", self.owner.name or "turn", self.owner, start_ns, self.last_ns)

    def _close_unanswered(self, key: str) -> None:
        """A new answer shows that the calls of earlier ones are over, whatever became of their results."""
        for call in [call for call in self.pending.values() if call.answer != key]:
            del self.pending[call.call_id]
            end_ns = self.last_ns if call.bound_ns is None else call.bound_ns
            kind: Kind = "human" if call.name in QUESTIONS else "tool"
            self._end_call(call, kind, call.start_ns, end_ns, "no result", "derived")

    def _end_call(
        self, call: _Call, kind: Kind, start_ns: int, end_ns: int | None, error: str | None, confidence: Confidence
    ) -> None:
        span = tool_span(call.call_id)
        self.book.add(
            kind,
            span,
            call.name,
            self.owner,
            start_ns,
            end_ns,
            call_id=call.call_id,
            error=error,
            confidence=confidence,
        )
