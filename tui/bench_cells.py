"""Runs of ``kvtrace bench agents`` as JSON: one file of many runs, and what several of them say together.

A run's *cell* is what it was asked: engine, policy, agents, seed, tool times and so on. Runs of one model and device whose
cells differ in the seed alone form a *group*. The *resident* group of another is the one with no more agents than slots and all else equal:
there nobody ever has to leave, so its first tokens and its b are those of an engine without contention.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, Final

SCHEMA_VERSION: Final = 2
NO_SWAP: Final = ("recompute", "keep")
_PATIENCE: Final = 2.0  # times the resident first token: longer than that, and an agent counts as not served

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """What a run was asked; equal cells measure the same. ``tool`` is as in ``--tool``, or the name of a session file."""

    engine: str
    policy: str | None
    agents: int
    seed: int
    tool: str
    steady_s: float | None
    prompt: int
    returns: int
    generate: int
    new: int
    slots: int


@dataclass(frozen=True, slots=True)
class Middle:
    """The median over seeds, and the least and greatest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their seed alone."""

    runs: tuple[Json, ...]

    @property
    def cell(self) -> Json:
        """What they were asked; the seed is the first one's."""
        cell: Json = self.runs[0]["cell"]
        return cell

    @property
    def agents(self) -> int:
        """How many at once."""
        return int(self.cell["agents"])

    def kind(self, *but: str) -> tuple[Any, ...]:
        """What must be equal for two groups to be comparable, apart from the parts of their cells named."""
        return _kind(self.runs[0], *but)

    @property
    def seeds(self) -> tuple[int, ...]:
        """In ascending order."""
        return tuple(sorted(run["cell"]["seed"] for run in self.runs))

    @property
    def whole(self) -> bool:
        """Whether no request failed: agents that gave up leave the others more room than they should have."""
        return not any(run.get("failed") for run in self.runs)

    def middle(self, *path: str) -> Middle | None:
        """Of the figure at ``path`` in each run; ``None`` where one does not have it."""
        values = [_at(run, path) for run in self.runs]
        known = [value for value in values if value is not None]
        return Middle(median(known), min(known), max(known)) if known and len(known) == len(values) else None

    def median(self, *path: str) -> float | None:
        """Of the figure at ``path``, or ``None``."""
        middle = self.middle(*path)
        return None if middle is None else middle.median


@dataclass(frozen=True, slots=True)
class Derived:
    """What a group says beside others; ``None`` where the other is missing.

    With b the resident group's and S slots: ``own_multiple`` is 1/(1-b) with the group's own b instead, in which
    queueing counts as living and lowers it; ``ceiling_multiple`` is 1/(1-b); ``queued_multiple`` is the machine-repair
    model's for so many agents on S slots. ``measured_multiple`` is turns a second over the resident group's, without swap
    where such a group is there, and ``of_no_swap`` over those of as many agents without swap; both are medians over the
    seeds that the two have in common, since another seed is other work. A run in which requests failed did less work and is
    compared with nothing. ``served_share`` is the share of returns whose
    first token took no longer than twice the resident median.
    ``ideal_multiple`` is what the ideal queue makes of the same two: it knows that a step with more agents takes longer,
    that prompts need the card as well, and that a closed loop ends with a tail, all of which b does not.
    """

    resident_ttft_s: float | None
    served_share: float | None
    own_multiple: float | None
    ceiling_multiple: float | None
    queued_multiple: float | None
    ideal_multiple: float | None
    measured_multiple: float | None
    of_no_swap: float | None


@dataclass(frozen=True, slots=True)
class Served:
    """Up to how many agents the median return's first token takes at most twice the resident one.

    ``agents`` is the largest number that was run with every smaller one below it too; ``between`` where the line through
    the measured numbers crosses the limit; ``of_bound`` is ``between`` over slots times 1/(1-b).
    """

    agents: int
    between: float
    of_bound: float | None


def groups_of(runs: Iterable[Json]) -> tuple[Group, ...]:
    """Groups in the order of their first runs."""
    found: dict[tuple[Any, ...], list[Json]] = {}
    for run in runs:
        found.setdefault(_kind(run, "seed"), []).append(run)
    return tuple(Group(tuple(same)) for same in found.values())


def derive(group: Group, groups: Sequence[Group], resident_ttft_s: float | None = None) -> Derived:
    """Hold ``group`` against the others; a resident first token that is given counts instead of a measured one."""
    cell = group.cell
    own, without = resident_of(group, groups, own=True), resident_of(group, groups, own=False)
    resident = resident_ttft_s or (own.median("return_ttft_s", "p50") if own else None)
    same = (other for other in groups if other.kind("seed", "policy") == group.kind("seed", "policy"))
    no_swap = next((other for other in same if other.cell["policy"] in NO_SWAP), None)
    b = without.median("b") if without else None
    return Derived(
        resident_ttft_s=resident,
        served_share=served_share(group, resident),
        own_multiple=_multiple(group.median("b")),
        ceiling_multiple=_multiple(b),
        queued_multiple=_queued(b, int(cell["slots"]), group.agents),
        ideal_multiple=_paired(group, without, "ideal_turns_per_s") if without else None,
        measured_multiple=_paired(group, without) if without else None,
        of_no_swap=_paired(group, no_swap) if no_swap else None,
    )


def resident_of(group: Group, groups: Sequence[Group], *, own: bool) -> Group | None:
    """The resident group to hold ``group`` against, with the most agents.

    ``own``: of the same policy if there is one, for latencies; else without swap if there is one, for rates.
    """
    others = [
        other
        for other in groups
        if other.whole
        and other.agents <= other.cell["slots"]
        and other.kind("seed", "policy", "agents") == group.kind("seed", "policy", "agents")
    ]
    wanted = (group.cell["policy"],) if own else NO_SWAP
    return max(others, key=lambda other: (other.cell["policy"] in wanted, other.agents), default=None)


def served_share(group: Group, resident_ttft_s: float | None) -> float | None:
    """The share of the group's returns whose first token took at most twice ``resident_ttft_s``."""
    firsts = [float(seconds) for run in group.runs for seconds in run["return_ttft_all_s"]]
    if resident_ttft_s is None or not firsts or not group.whole:
        return None
    return sum(seconds <= _PATIENCE * resident_ttft_s for seconds in firsts) / len(firsts)


def served(line: Sequence[Group], groups: Sequence[Group], resident_ttft_s: float | None = None) -> Served | None:
    """How many agents ``line`` serves: groups of one engine, policy and tool that differ in their agents."""
    ordered = sorted((group for group in line if group.whole), key=lambda group: group.agents)
    if not ordered:
        return None
    derived = derive(ordered[-1], groups, resident_ttft_s)
    if derived.resident_ttft_s is None:
        return None
    limit, last, between = _PATIENCE * derived.resident_ttft_s, None, 0.0
    for group in ordered:
        first = group.median("return_ttft_s", "p50")
        if first is None or first > limit:
            if last is not None and first is not None:
                start, start_first = last
                between = start + (group.agents - start) * (limit - start_first) / (first - start_first)
            break
        last, between = (group.agents, first), float(group.agents)
    if last is None:
        return None
    bound = None if derived.ceiling_multiple is None else int(ordered[-1].cell["slots"]) * derived.ceiling_multiple
    return Served(last[0], between, _ratio(between, bound))


def against(group: Group, other: Group) -> dict[str, float | None]:
    """What ``group`` moved and handed over, as shares of what ``other`` did, such as ``auto`` against ``eager``."""

    def moved(one: Group) -> float | None:
        ways = one.median("moved", "out_bytes"), one.median("moved", "in_bytes")
        return None if None in ways else sum(way for way in ways if way is not None)

    def ratio(*path: str) -> float | None:
        return _ratio(group.median(*path), other.median(*path))

    return {
        "moved_bytes": _ratio(moved(group), moved(other)),
        "freed_byte_s": ratio("moved", "freed_byte_s"),
        "handed_byte_s": ratio("moved", "handed_byte_s"),
        "turns_per_s": ratio("turns_per_s"),
    }


def read_runs(path: Path) -> list[Json]:
    """The runs of a file that :func:`add_runs` wrote; none where there is no file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds something else, or runs as another version of kvtrace writes them.
    """
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        document = None
    runs = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(runs, list):
        raise ValueError(f"{path} holds no runs of `kvtrace bench agents`")
    if (version := document.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, and this kvtrace reads {SCHEMA_VERSION}: give another file"
        )
    for number, run in enumerate(runs, 1):
        if not _sound(run):
            raise ValueError(f"{path} holds no runs of `kvtrace bench agents`: number {number} lacks what they have")
    return runs


def merged(*files: Sequence[Json]) -> list[Json]:
    """All runs, each cell of a model and card once. In the order in which the cells first came.

    The latest counts, but one in which requests failed does not take the place of one without.
    """
    found: dict[tuple[Any, ...], Json] = {}
    for run in (run for runs in files for run in runs):
        before = found.get(_kind(run))
        if before is None or not run.get("failed") or before.get("failed"):
            found[_kind(run)] = run
    return list(found.values())


def nameless(run: Json) -> bool:
    """Whether a run does not say on which card it was made."""
    device = (run.get("server") or {}).get("device") or ""
    return not (run.get("machine") or {}).get("device") and not device.startswith("cpu")


def half_named(run: Json, others: Iterable[Json]) -> bool:
    """Whether some of ``others`` may be of the same card, and only they name it, or only ``run`` does: cells apart."""

    def place(one: Json) -> tuple[Any, ...]:
        server = one.get("server") or {}
        return one["cell"]["engine"], server.get("model"), server.get("device")

    return any(place(other) == place(run) and nameless(other) is not nameless(run) for other in others)


def add_runs(path: Path, runs: Sequence[Json]) -> None:
    """Write ``runs`` into the file beside those it has, as :func:`merged` does. A line a run.

    Several processes may add to one file at the same time.

    Raises:
        OSError, ValueError: as :func:`read_runs`, or the file cannot be written.
    """
    path = path.resolve()  # what a link points at is replaced, and not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(path.parent):
        lines = ",\n".join(json.dumps(run) for run in merged(read_runs(path), runs))
        draft = path.with_name(path.name + ".part")
        draft.write_text(f'{{"schema_version": {SCHEMA_VERSION}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")
        draft.replace(path)


def check_writable(path: Path) -> None:
    """See that a file, and its folder, could be written at ``path``, before hours are spent on what it is to hold.

    Raises:
        OSError: it could not.
    """
    path = path.resolve()
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with tempfile.TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())):
        pass


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes that ask the same out of the folder: a lock on the file itself would go with the old file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sound(run: Any) -> bool:
    """Whether ``run`` has what groups and figures are made of."""
    if not isinstance(run, dict) or not isinstance(cell := run.get("cell"), dict):
        return False
    texts = ("engine", "tool")
    wholes = ("agents", "seed", "prompt", "returns", "generate", "new", "slots")
    firsts = run.get("return_ttft_all_s")
    return (
        set(cell) == {field.name for field in fields(Cell)}
        and all(isinstance(cell[name], str) for name in texts)
        and all(type(cell[name]) is int for name in wholes)
        and isinstance(cell["policy"], str | None)
        and isinstance(cell["steady_s"], int | float | None)
        and isinstance(run.get("turns_per_s"), int | float)
        and isinstance(run.get("ideal_turns_per_s", ""), int | float | None)
        and isinstance(firsts, list)
        and all(isinstance(seconds, int | float) for seconds in firsts)
    )


def _kind(run: Json, *but: str) -> tuple[Any, ...]:
    """The cell but for those parts, the model, kind of device and size of blocks that the server told, and the card's name."""
    server, machine = run.get("server") or {}, run.get("machine") or {}
    cell = ((name, value) for name, value in sorted(run["cell"].items()) if name not in but)
    return (*cell, server.get("model"), server.get("device"), server.get("block_tokens"), machine.get("device"))


def _at(run: Json, path: Sequence[str]) -> float | None:
    value: Any = run
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _multiple(b: float | None) -> float | None:
    from kvtrace.analysis.capacity import ideal

    return ideal(b)


def _queued(b: float | None, slots: int, agents: int) -> float | None:
    from kvtrace.analysis.capacity import machine_repair

    return machine_repair(b, slots, agents)[0] if b is not None and 0 <= b < 1 and agents >= slots else None


def _ratio(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _paired(group: Group, other: Group, name: str = "turns_per_s") -> float | None:
    """That figure over the other's, over the seeds that both have."""
    rates = {run["cell"]["seed"]: run[name] for run in other.runs if not run.get("failed")}
    pairs = [(run[name], rates.get(run["cell"]["seed"])) for run in group.runs if not run.get("failed")]
    ratios = [value / whole for value, whole in pairs if value is not None and whole]
    return median(ratios) if ratios else None
