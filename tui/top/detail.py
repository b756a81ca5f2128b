"""One agent: what it did when, which tools it waited for, how its KV moved, and what computing it again would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from kvtrace.engine.records import AgentState, EventKind

from ..feed.contract import Sample
from .history import History, Spell, ToolWait, Track
from .lines import Line, amount, bar, cell, fit, seconds, share, size
from .log import log_lines
from .looks import LOOKS, WAITS, Detail, Shown, fill, glyph, wording

WINDOWS_S: Final = (60, 120, 600, 3600)
_NS: Final = 1_000_000_000
_LABEL: Final = 12
_TOOLS: Final = 8
_EVENTS: Final = 200


@dataclass(frozen=True, slots=True)
class Space:
    """What a detail is drawn into: cells of width, length of the Gantt's window, and how."""

    width: int
    window_s: int
    ascii_only: bool
    zone: tzinfo | None = None


def first_window(name: str, sample: Sample | None, history: History) -> int:
    """Which of :data:`WINDOWS_S` holds what is known of an agent, the shortest; at most the longest but one."""
    track = history.tracks.get(name)
    if track is None or sample is None or not track.spells:
        return 0
    known_s = (sample.snapshot.time_unix_ns - track.spells[0].start_ns) / _NS
    return next((at for at, window_s in enumerate(WINDOWS_S[:-1]) if window_s >= known_s), len(WINDOWS_S) - 2)


def detail_lines(name: str, sample: Sample | None, history: History, space: Space) -> list[Line]:
    """Everything about one agent, from the top."""
    track = history.tracks.get(name)
    if track is None or sample is None:
        return [[(f"{name} is not there any more", "dim")]]
    lines = [_title(track, space), _facts(track, sample), *_life(track), []]
    lines += _gantt(track, sample.snapshot.time_unix_ns, space)
    lines += [[], *_tools(track, space), [], *_recompute(track, sample, history)]
    if sample.knows_memory:
        moves = log_lines(history, _EVENTS, space.width, space.ascii_only, space.zone, agent=name)
        lines += [[], [("PARKS AND RESTORES", "label"), ("  newest first", "dim")]]
        lines += moves or [[("none seen yet", "dim")]]
    return [fit(line, space.width) for line in lines]


def _title(track: Track, space: Space) -> Line:
    look = LOOKS[track.state]
    words = wording(track.state, track.record, Detail(), short=False)
    return [
        (f"{track.record.agent}  ", "strong"),
        (f"{glyph(track.state, space.ascii_only)} {words}", look.style),
        (f"  for {seconds(track.record.since_s)}", ""),
    ]


def _facts(track: Track, sample: Sample) -> Line:
    agent = track.record
    line: Line = [
        ("b ", "dim"),
        (share(agent.b), "strong"),
        ("  context ", "dim"),
        (f"{agent.context_tokens:,}", "strong"),
    ]
    if sample.knows_memory:
        line += [
            ("  VRAM ", "dim"),
            (size(agent.vram_bytes) if agent.vram_bytes else "-", ""),
            ("  host ", "dim"),
            (size(agent.host_bytes) if agent.host_bytes else "-", ""),
            ("  parked ", "dim"),
            (f"{agent.parks}x", ""),
            ("  restored ", "dim"),
            (f"{agent.restores}x", ""),
        ]
        lost = agent.context_tokens - agent.kept_tokens
        if lost > 0:
            line.append((f"  {amount(lost)} {'token has' if lost == 1 else 'tokens have'} no KV anywhere", "alarm"))
    return line


def _life(track: Track) -> list[Line]:
    """Its time by state since the engine first met it, where the engine tells; all waiting for tools is one."""
    told = track.record.state_seconds
    parts: Line = [("since it began: ", "dim")]
    for state, spent_s in sorted(told.items(), key=lambda item: -item[1]):
        if spent_s >= 0.05 and state in _LIFE:
            look = LOOKS[_LIFE[state]]
            word = "waiting" if _LIFE[state] is Shown.RESIDENT else look.word
            parts.append((f"{word} {seconds(spent_s)}  ", look.style))
    return [parts] if len(parts) > 1 else []


_LIFE: Final = {
    AgentState.GENERATING.value: Shown.GENERATING,
    AgentState.BLOCKED_RESIDENT.value: Shown.RESIDENT,
    AgentState.QUEUED.value: Shown.QUEUED,
    AgentState.RESTORING.value: Shown.RESTORING,
    AgentState.HUMAN.value: Shown.HUMAN,
    AgentState.IDLE.value: Shown.IDLE,
}


def _gantt(track: Track, now_ns: int, space: Space) -> list[Line]:
    """A lane for each state that occurred, in time from left to right."""
    first_ns = track.spells[0].start_ns if track.spells else now_ns
    window_ns = space.window_s * _NS
    start_ns = now_ns - window_ns
    spells = list(track.between(start_ns, now_ns))
    width = max(8, space.width - _LABEL - 9)
    lines: list[Line] = [[("TIMELINE", "label"), (f"  last {_window(space.window_s)}", "dim")]]
    for lane, states in _LANES:
        own = [spell for spell in spells if spell[2].state in states]
        if own:
            spent_s = sum(stop - begin for begin, stop, _ in own) / _NS
            cells = _lane(own, states[0], start_ns, window_ns, width, space.ascii_only)
            lines.append([(cell(lane, _LABEL), LOOKS[states[0]].style), *cells, (f" {seconds(spent_s):>8}", "")])
    lines.append([(" " * _LABEL, ""), *_axis(space.window_s, width)])
    if first_ns > start_ns:
        lines[0].append((f", watched for {seconds((now_ns - first_ns) / _NS)}", "dim"))
    return lines


_LANES: Final[tuple[tuple[str, tuple[Shown, ...]], ...]] = (
    ("generating", (Shown.GENERATING,)),
    ("tool", (Shown.TOOL,)),
    ("resident", (Shown.RESIDENT,)),
    ("parking", (Shown.PARKING,)),
    ("parked", (Shown.PARKED,)),
    ("restoring", (Shown.RESTORING,)),
    ("queued", (Shown.QUEUED,)),
    ("human", (Shown.HUMAN,)),
)


def _lane(
    spells: Sequence[tuple[int, int, Spell]], state: Shown, start_ns: int, window_ns: int, width: int, ascii_only: bool
) -> Line:
    """Cells in which the state occurred at all: a park of 20 ms is seen in an hour, too."""
    marked = [False] * width
    for begin_ns, stop_ns, _ in spells:
        first = int((begin_ns - start_ns) / window_ns * width)
        last = int((stop_ns - start_ns - 1) / window_ns * width)
        for at in range(max(0, first), min(width - 1, last) + 1):
            marked[at] = True
    mark = fill(state, ascii_only)
    return [("".join(mark if each else " " for each in marked), LOOKS[state].style)]


def _axis(window_s: int, width: int) -> Line:
    """Marks at quarters of the window, how long ago each is."""
    text = [" "] * width
    for quarter in range(4):
        at = quarter * width // 4
        label = f"|-{_window(window_s * (4 - quarter) // 4)}"
        text[at : at + len(label)] = label
    return [("".join(text)[:width], "dim")]


def _window(length_s: int) -> str:
    return f"{length_s} s" if length_s < 120 else f"{length_s / 60:g} min"


def _tools(track: Track, space: Space) -> list[Line]:
    """Tools by total wait, with the share each has of all waiting."""
    waits = sorted(track.tools().items(), key=lambda item: -item[1].total_s)
    total_s = sum(wait.total_s for _, wait in waits)
    lines: list[Line] = [[("TOOLS BY TOTAL WAIT", "label"), ("  as seen here", "dim")]]
    if not waits:
        return [*lines, [("no wait seen yet", "dim")]]
    lines.append([(f"{'':<14}{'WAITS':>6}{'TOTAL':>9}{'MEAN':>9}{'LONGEST':>9}", "heading")])
    lines += [_tool_line(tool, wait, total_s, space) for tool, wait in waits[:_TOOLS]]
    if len(waits) > _TOOLS:
        lines.append([(f"and {len(waits) - _TOOLS} more", "dim")])
    return lines


def _tool_line(tool: str, wait: ToolWait, total_s: float, space: Space) -> Line:
    figures = (
        f"{wait.calls:>6}{seconds(wait.total_s):>9}{seconds(wait.total_s / wait.calls):>9}{seconds(wait.longest_s):>9}"
    )
    line: Line = [(cell(tool, 14), "name"), (figures, "")]
    room = min(40, space.width - 14 - len(figures) - 2)
    if room >= 8:
        line += [("  ", ""), *bar([(wait.total_s, "#" if space.ascii_only else "█", "waiting")], total_s, room)]
    return line


def _recompute(track: Track, sample: Sample, history: History) -> list[Line]:
    """What this agent's copies back spared, and what its context would cost if it had to be computed again."""
    rate = history.prefill_rate()
    if not sample.knows_memory:
        return []
    if rate is None:
        return [[("RECOMPUTING INSTEAD", "label"), ("  unknown until the engine has computed a prompt", "dim")]]
    back = [event for event in history.events if event.agent == track.record.agent and event.kind in _BACK]
    spared_s = sum(history.recompute_s(event.bytes) or 0.0 for event in back)
    took_s = sum((event.duration_ms or 0.0) / 1e3 for event in back)
    lines: list[Line] = [
        [
            ("RECOMPUTING INSTEAD", "label"),
            (f"  at {rate:,.0f} tokens/s of prefill, this engine's own rate so far", "dim"),
        ],
    ]
    if back:
        lines.append(
            [
                (f"{len(back)} return{'s' * (len(back) > 1)} seen took ", ""),
                (seconds(took_s), "strong"),
                (" of copying and spared ", ""),
                (seconds(spared_s), "strong"),
                (" of prefill", ""),
            ]
        )
    if track.record.context_tokens:
        whole_s = track.record.context_tokens / rate
        lines.append([("Its whole context again would take ", ""), (seconds(whole_s), "strong")])
    return lines


_BACK: Final = frozenset({EventKind.RESTORE, EventKind.REVIVE})
assert {state for _, states in _LANES for state in states} >= WAITS
