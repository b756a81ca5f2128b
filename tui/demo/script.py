"""What each demo agent does, decided before anything runs. Pure and seeded.

SmolLM2-135M cannot choose tools sensibly, so a script does: the model really generates every turn, the tools
really run, but which tool comes next was drawn here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

SYSTEM_PROMPT: Final = (
    "You are a careful software engineer who works on the source code of kvtrace, a Python package. You look at one "
    "thing at a time. Before every step you say in one or two plain sentences what you have learnt so far and what you "
    "want to look at next. After that exactly one tool runs: read_file shows the beginning of a file, grep counts the "
    "lines that match a word, shell runs a short command, and run_checks starts a slow command and waits for it. You "
    "never invent what a tool returned. When you know enough you sum up what you found in three short sentences."
)

TASKS: Final = (
    "Find out where a tool span gets its agent id from",
    "Explain how a span file survives a killed process",
    "List what the engine copies to the host and when",
    "Find the place that decides which agent is parked",
    "Check how the report treats two tools that overlap",
    "Find out why a prefix hit needs one more token",
    "Explain which errors a request can be refused with",
    "Look for places where the command line hides a fault",
)

TASK_DETAIL: Final = (
    ". Start with the file that sounds most likely, follow the names you find there, and keep a note of every file you "
    "have opened so that you do not open it twice. If a search gives too much, narrow it. Do not change anything: this "
    "is only about understanding the code as it stands. I will ask a colleague to read your summary, who knows Python "
    "but has never seen this project, so name files and functions exactly."
)

FILES: Final = (
    "tracer/signals.py",
    "tracer/attributes.py",
    "tracer/clock.py",
    "engine/policy.py",
    "engine/scheduler.py",
    "engine/errors.py",
    "engine/records.py",
    "analysis/report.py",
    "tui/cli.py",
)
WORDS: Final = ("agent", "block", "tool", "span", "host", "error", "policy", "async", "return")
COMMANDS: Final = (
    "ls engine | head -5",
    "wc -l tracer/*.py | tail -1",
    "find . -name '*.sql' | wc -l",
    "ls analysis/sql",
)

# Real coding agents spend most calls in quick reads and searches and most seconds in a few slow commands.
TOOL_WEIGHTS: Final = {"read_file": 0.2, "grep": 0.2, "shell": 0.2, "run_checks": 0.4}
SLOW_LEAST_S: Final = 2.0
SLOW_EXTRA_MEAN_S: Final = 3.0
SLOW_MOST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call: the tool's name and its only argument."""

    tool: str
    argument: str


@dataclass(frozen=True, slots=True)
class AgentScript:
    """One agent: its name, what it is asked, and the tools that follow its turns."""

    name: str
    task: str
    steps: tuple[Step, ...]

    def messages(self) -> list[dict[str, str]]:
        """The opening messages; the system prompt is the same for every agent."""
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": self.task}]


def write_scripts(agents: int, turns: int, seed: int) -> tuple[AgentScript, ...]:
    """Draw the scripts of ``agents`` agents with ``turns`` tool calls each; the same seed gives the same scripts."""
    return tuple(_script(index, turns, random.Random(f"{seed}/{index}")) for index in range(agents))  # noqa: S311 (not a secret)


def _script(index: int, turns: int, rng: random.Random) -> AgentScript:
    task = TASKS[index % len(TASKS)] + TASK_DETAIL
    return AgentScript(f"agent-{index + 1}", task, tuple(_step(rng) for _ in range(turns)))


def _step(rng: random.Random) -> Step:
    tool = rng.choices(list(TOOL_WEIGHTS), weights=list(TOOL_WEIGHTS.values()))[0]
    if tool == "read_file":
        return Step(tool, rng.choice(FILES))
    if tool == "grep":
        return Step(tool, rng.choice(WORDS))
    if tool == "shell":
        return Step(tool, rng.choice(COMMANDS))
    seconds = min(SLOW_MOST_S, SLOW_LEAST_S + rng.expovariate(1 / SLOW_EXTRA_MEAN_S))
    return Step(tool, f"{seconds:.2f}")
