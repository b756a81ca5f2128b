"""From the turns of a run to its figures. Pure; seconds and tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .client import TurnRecord

_BUSY_SHARE: Final = 0.75  # of the returns; the rest is the tail, in which slots fall idle


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of something; ``None`` where there is nothing."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """The quantiles of the values that are known (the smallest value that so many do not exceed)."""
        ordered = sorted(value for value in values if value is not None)
        return cls(*(_quantile(ordered, share) for share in (0.50, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class Figures:
    """One run.

    A *turn* is a request that was answered whole; a *return* is a turn after the first of its agent. The *busy window*
    runs from the last agent's first token to the 75th percentile of the returns' ends: neither the cold start, in which
    prompts queue, nor the tail, in which agents have gone. ``decoding_mean`` is how many agents were between first and
    last token in it. ``b`` is the share of the agents' own time in which their tools ran.
    ``prompt_tokens = cached_tokens + computed_tokens``; of the cached, ``host_tokens`` came from host memory. Token
    counts are ``None`` where the server does not tell. ``return_ttft_all_s`` are the first tokens of all returns in
    ascending order, for shares that only another run's figure makes sense of. Where the server tells, a return's first
    token is split: ``return_queued_s`` until it held a slot, ``return_restoring_s`` until its KV was there, and
    ``return_starting_s`` the rest, which is its new tokens' computation and the way to the server and back.
    """

    agents: int
    turns: int
    failed: int
    makespan_s: float
    turns_per_s: float
    returns_per_s_busy: float | None
    decoding_mean: float | None
    first_ttft_s: Spread
    return_ttft_s: Spread
    return_ttft_all_s: tuple[float, ...]
    return_queued_s: Spread
    return_restoring_s: Spread
    return_starting_s: Spread
    tpot_s: Spread
    b: float | None
    prompt_tokens: int
    cached_tokens: int | None
    host_tokens: int | None
    computed_tokens: int | None
    reprefilled_tokens: int | None
    generated_tokens: int
    token_ids_returned: bool
    errors: tuple[str, ...]


def figures_of(turns: Sequence[TurnRecord], window: tuple[float, float] | None = None) -> Figures:
    """The figures of a run's turns.

    Args:
        turns: every request of the run, in any order.
        window: count only turns that ended within these instants, and take its length for the makespan: the steady
            part of a run in which finished agents are replaced.
    """
    whole = [turn for turn in turns if turn.error is None and turn.ended_s is not None]
    if window is not None:
        whole = [turn for turn in whole if window[0] < _end(turn) <= window[1]]
    start_s = min((turn.sent_s for turn in turns), default=0.0)
    makespan_s = window[1] - window[0] if window else max((_end(turn) for turn in whole), default=start_s) - start_s
    returns = [turn for turn in whole if turn.turn > 0]
    busy = window or _busy_window(whole, returns)
    failed = [turn for turn in turns if turn.error is not None]
    cached = _total(turn.cached_tokens for turn in whole)
    prompt = sum(turn.prompt_tokens for turn in whole)
    return Figures(
        agents=len({turn.agent for turn in turns}),
        turns=len(whole),
        failed=len(failed),
        makespan_s=makespan_s,
        turns_per_s=len(whole) / makespan_s if makespan_s > 0 else 0.0,
        returns_per_s_busy=_rate(returns, busy),
        decoding_mean=_overlap(whole, busy),
        first_ttft_s=Spread.of(turn.ttft_s for turn in whole if turn.turn == 0),
        return_ttft_s=Spread.of(turn.ttft_s for turn in returns),
        return_ttft_all_s=tuple(sorted(round(turn.ttft_s, 5) for turn in returns if turn.ttft_s is not None)),
        return_queued_s=Spread.of(turn.queued_s for turn in returns),
        return_restoring_s=Spread.of(turn.restoring_s for turn in returns),
        return_starting_s=Spread.of(_starting_s(turn) for turn in returns),
        tpot_s=Spread.of(turn.tpot_s for turn in whole),
        b=_blocked_share(whole),
        prompt_tokens=prompt,
        cached_tokens=cached,
        host_tokens=_total(turn.host_tokens for turn in whole),
        computed_tokens=None if cached is None else prompt - cached,
        reprefilled_tokens=_total(turn.reprefilled_tokens for turn in whole),
        generated_tokens=sum(turn.output_tokens for turn in whole),
        token_ids_returned=all(turn.output_ids for turn in whole),
        errors=tuple(f"{count} × {text}" for text, count in Counter(turn.error for turn in failed).most_common(3)),
    )


def _starting_s(turn: TurnRecord) -> float | None:
    if turn.ttft_s is None or turn.queued_s is None or turn.restoring_s is None:
        return None
    return turn.ttft_s - turn.queued_s - turn.restoring_s


def _end(turn: TurnRecord) -> float:
    return turn.ended_s if turn.ended_s is not None else turn.sent_s


def _busy_window(whole: Sequence[TurnRecord], returns: Sequence[TurnRecord]) -> tuple[float, float] | None:
    starts = [turn.first_token_s for turn in whole if turn.turn == 0 and turn.first_token_s is not None]
    end = _quantile(sorted(_end(turn) for turn in returns), _BUSY_SHARE)
    if not starts or end is None or end <= max(starts):
        return None
    return max(starts), end


def _rate(returns: Sequence[TurnRecord], busy: tuple[float, float] | None) -> float | None:
    if busy is None:
        return None
    return sum(busy[0] < _end(turn) <= busy[1] for turn in returns) / (busy[1] - busy[0])


def _overlap(whole: Sequence[TurnRecord], busy: tuple[float, float] | None) -> float | None:
    if busy is None:
        return None
    shared = (
        min(_end(turn), busy[1]) - max(turn.first_token_s, busy[0]) for turn in whole if turn.first_token_s is not None
    )
    return sum(max(0.0, length) for length in shared) / (busy[1] - busy[0])


def _blocked_share(whole: Sequence[TurnRecord]) -> float | None:
    """Time in tools over time from an agent's first request to its last token, of all agents together."""
    lives: defaultdict[str, list[TurnRecord]] = defaultdict(list)
    for turn in whole:
        lives[turn.agent].append(turn)
    wall = blocked = 0.0
    for turns in lives.values():
        ordered = sorted(turns, key=lambda turn: turn.turn)
        wall += _end(ordered[-1]) - ordered[0].sent_s
        blocked += sum(turn.tool_s for turn in ordered[:-1])
    return blocked / wall if wall > 0 else None


def _total(values: Iterable[int | None]) -> int | None:
    """The sum, or ``None`` where one is not known."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
