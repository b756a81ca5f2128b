"""Numbers and names as short text. Unknown is a dash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..report import AgentReport

DASH = "–"


def seconds(value: float | None) -> str:
    """A length in the unit one would say it in: ``41 ms``, ``0.31 s``, ``12.4 s``, ``3m 42s``, ``3h 12m``, ``4d 04h``.

    >>> [seconds(value) for value in (None, 0, 0.0004, 0.041, 0.31, 12.44, 222.2, 11520, 360000)]
    ['–', '0 s', '0.4 ms', '41 ms', '0.31 s', '12.4 s', '3m 42s', '3h 12m', '4d 04h']
    """
    if value is None:
        return DASH
    if value == 0:
        return "0 s"
    if value < 0.0995:
        return f"{value * 1e3:.0f} ms" if value >= 0.00995 else f"{value * 1e3:.2g} ms"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    if value < 3599.5:
        return f"{round(value) // 60}m {round(value) % 60:02d}s"
    if value < 2 * 86_400:
        return f"{round(value / 60) // 60}h {round(value / 60) % 60:02d}m"
    return f"{round(value / 3600) // 24:,}d {round(value / 3600) % 24:02d}h"


def percent(value: float | None) -> str:
    """A share as per cent, never rounded to 0 or 100 unless it is.

    >>> [percent(value) for value in (None, 0.0, 0.001, 0.276, 0.999, 1.0)]
    ['–', '0 %', '<1 %', '28 %', '>99 %', '100 %']
    """
    if value is None:
        return DASH
    if 0 < value < 0.005:
        return "<1 %"
    if 0.995 <= value < 1:
        return ">99 %"
    return f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """A share with two digits: ``0.62``."""
    return DASH if value is None else f"{value:.2f}"


def multiple(value: float | None) -> str:
    """A multiple: ``×2.27``."""
    if value is None:
        return DASH
    return f"×{value:.2f}" if value < 99.995 else f"×{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """A count with its noun: ``1 agent``, ``1,904 tool calls``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(text: str, width: int) -> str:
    """A foreign name made safe for a terminal and cut to ``width``, the beginning and the end kept."""
    safe = "".join(char if char.isprintable() else "?" for char in text)
    if len(safe) <= width:
        return safe
    head = (width - 1) // 2
    return f"{safe[:head]}…{safe[len(safe) - (width - 1 - head) :]}"


def agent_labels(agents: Iterable[AgentReport]) -> dict[str, str]:
    """What to call each agent: its name where that is unique, with the end of its id otherwise, else its id."""
    known = list(agents)
    uses = Counter(agent.name for agent in known)
    return {agent.agent: _label(agent, uses) for agent in known}


def _label(agent: AgentReport, uses: Counter[str | None]) -> str:
    if agent.name is None:
        return agent.agent
    return agent.name if uses[agent.name] == 1 else f"{agent.name} {agent.agent[-6:]}"
