"""The union b of public traces: ``python benchmarks/published_b.py [FOLDER] [--out benchmarks/results]``.

Measures every file below FOLDER by itself and writes the figures, never the traces, to one ``b-<group>.json`` for each
folder in it, with where each trace is from (the table in FOLDER's README.md). Files without usable times are listed
with the reason. The result depends on the files alone: nothing counts as still running, and no clock is read.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from kvtrace.analysis import AnalysisError, Report, build_report
from kvtrace.analysis.intake import ReadOptions
from kvtrace.analysis.normal import Process

ROOT = Path(__file__).resolve().parents[1]
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Finished:
    """A host on which nothing runs any more."""

    def unix_ns(self) -> int:
        """An instant nobody asks for."""
        return 0

    def is_running(self, process: Process) -> bool:
        """Never."""
        del process
        return False


def rounded(value: Any) -> Any:
    """Figures to the microsecond, so that results can be compared as text."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def origins(folder: Path) -> dict[str, dict[str, str]]:
    """Where each file is from and its licence, by its name in the first table of the folder's README."""
    readme = folder / "README.md"
    found = {}
    for line in readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []:
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 4 and cells[0].startswith("`"):
            found[cells[0].strip("`")] = {"from": cells[1].replace("`", ""), "licence": cells[2]}
    return found


def figures(report: Report) -> dict[str, Any]:
    """What is published of a report: figures of all agents and of each, without names or paths."""
    pooled = asdict(report.pooled)
    agents = [
        {k: v for k, v in asdict(agent).items() if k not in ("agent", "name", "parent")} for agent in report.agents
    ]
    (source,) = report.sources
    return {
        "kind": source.kind,
        "cannot_show": source.cannot_show,
        "pooled": {key: value for key, value in pooled.items() if key != "decision"},
        "agents": agents,
    }


def measure(path: Path) -> dict[str, Any]:
    """Figures of one file, or why there are none."""
    try:
        return figures(build_report([path], host=Finished(), reading=ReadOptions(cache=False)))
    except AnalysisError as error:
        return {"no_figure": str(error).replace(str(path), path.name)}


def main() -> None:
    """Write the results and print one line a trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    known = origins(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent != folder)
    asked.out.mkdir(parents=True, exist_ok=True)
    print(f"{'trace':<52}{'b':>7}{'b_busy':>8}{'blocked':>10}{'wall s':>10}")
    for group, paths in groupby(files, key=lambda path: path.relative_to(folder).parts[0]):
        traces = {str(path.relative_to(folder)): rounded(measure(path)) for path in paths}
        for name, found in traces.items():
            found |= known.get(name, {})
            print(line(name, found))
        document = {"schema_version": 1, "kvtrace": version("kvtrace"), "group": group, "traces": traces}
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (asked.out / f"b-{group}.json").write_text(f"{text}\n", encoding="utf-8")


def line(name: str, found: dict[str, Any]) -> str:
    """One trace in the printed table."""
    if "no_figure" in found:
        return f"{name:<52}  {found['no_figure']}"
    pooled = found["pooled"]
    shares = "".join("      –" if pooled[key] is None else f"{pooled[key]:>7.3f}" for key in ("b", "b_busy"))
    return f"{name:<52}{shares}{pooled['blocked_s']:>11.3f}{pooled['wall_s']:>10.3f}"


if __name__ == "__main__":
    main()
