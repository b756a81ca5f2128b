"""What a report over many spans costs: ``python benchmarks/report.py [--spans N] [--agents N] [--out FILE]``.

Writes spans as OTLP JSON lines (the same for the same seed), then measures, each in a process of its own: the first
import into an empty cache, the first report from it, which derives every agent's timeline, the report after that, the
report after a few agents went on, and two ways to do it by hand, which compute the union of tool calls over wall clock
and no more: DuckDB over the raw JSON with the columns' types given, and pandas over the parsed lines (a row says so
where pandas is not installed). Prints a table and writes it with the machine, the versions, and how many times as long the
ways by hand take. CPU seconds stand beside wall clock, since they say more on a machine that has other things to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from machine import describe
from report_spans import write_spans

HERE: Final = Path(__file__).parent

KVTRACE: Final = """
import sys
from pathlib import Path
from kvtrace.analysis import ReadOptions, build_report
report = build_report(list(map(Path, sys.argv[2:])), reading=ReadOptions(cache_folder=Path(sys.argv[1])))
print(report.pooled.tool_union_s / report.pooled.wall_s)
"""
IMPORT: Final = """
import sys
from pathlib import Path
from kvtrace.analysis.cache import SpanCache
from kvtrace.analysis.evidence import ThisHost
from kvtrace.analysis.loading import load_files
from kvtrace.analysis.progress import Quiet
from kvtrace.analysis.store import Store
with Store() as store:
    load_files(store, [Path(sys.argv[1])], ThisHost(), SpanCache(Path(sys.argv[2])), Quiet())
"""
PLAIN_DUCKDB: Final = """
import sys, tempfile
import duckdb
connection = duckdb.connect(config={"memory_limit": "1500MB", "temp_directory": tempfile.mkdtemp()})
connection.execute("set enable_progress_bar = false")
span = ("STRUCT(startTimeUnixNano BIGINT, endTimeUnixNano BIGINT, "
        "attributes STRUCT(\\"key\\" VARCHAR, \\"value\\" STRUCT(stringValue VARCHAR))[])")
columns = {"resourceSpans": f"STRUCT(scopeSpans STRUCT(spans {span}[])[])[]"}
print(connection.execute('''
with spans as (
    select unnest(resourceSpans[1].scopeSpans[1].spans) as s
    from read_json($path, format = 'newline_delimited', columns = $columns)
),
calls as (
    select s.startTimeUnixNano as start_ns, s.endTimeUnixNano as stop_ns,
           list_filter(s.attributes, lambda x: x.key = 'gen_ai.operation.name')[1].value.stringValue as operation,
           list_filter(s.attributes, lambda x: x.key = 'kvtrace.agent.id')[1].value.stringValue as agent
    from spans
),
reached as (
    select agent, start_ns, stop_ns, max(stop_ns) over (
        partition by agent order by start_ns rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from calls where operation = 'execute_tool'
)
select (select sum(greatest(0, stop_ns - greatest(start_ns, coalesce(reached_ns, 0)))) from reached)
     / (select sum(wall) from (select max(stop_ns) - min(start_ns) as wall from calls group by agent))
''', {"path": sys.argv[1], "columns": columns}).fetchone()[0])
"""
PANDAS: Final = """
import json, sys
import pandas
rows = []
for line in open(sys.argv[1], "rb"):
    for resource in json.loads(line)["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                said = {each["key"]: each["value"].get("stringValue") for each in span["attributes"]}
                rows.append((said["kvtrace.agent.id"], said["gen_ai.operation.name"],
                             int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])))
calls = pandas.DataFrame(rows, columns=["agent", "operation", "start", "stop"])
tools = calls[calls.operation == "execute_tool"].sort_values(["agent", "start"])
reached = tools.groupby("agent").stop.cummax().groupby(tools.agent).shift(fill_value=0)
union = (tools.stop - tools.start.where(tools.start > reached, reached)).clip(lower=0).sum()
per_agent = calls.groupby("agent")
print(union / (per_agent.stop.max() - per_agent.start.min()).sum())
"""


FIRST_IMPORT: Final = "kvtrace, first import"
FROM_CACHE: Final = "kvtrace, report from cache"
BY_HAND: Final = {"plain DuckDB, one figure": PLAIN_DUCKDB, "pandas, one figure": PANDAS}
MORE_SPANS: Final = 5000
MORE_AGENTS: Final = 10


def measure(program: str, *arguments: str) -> dict[str, Any]:
    """Run a program; its answer, wall clock and CPU seconds, and the peak memory of the biggest process in MB."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _PEAK + program, *arguments], capture_output=True, text=True, check=False
    )
    wall_s, after = time.perf_counter() - began, os.times()
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    *answer, peak_kb = done.stdout.split()
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(after.children_user + after.children_system - before.children_user - before.children_system, 2),
        "peak_mb": round(int(peak_kb) / 1024),
        "tool_union_over_wall": float(answer[0]) if answer else None,
    }


_PEAK: Final = """
import atexit, resource as usage
atexit.register(lambda: print(max(
    usage.getrusage(who).ru_maxrss for who in (usage.RUSAGE_SELF, usage.RUSAGE_CHILDREN))))
"""


def compare(spans: int, agents: int, seed: int, folder: Path, by_hand: bool) -> dict[str, Any]:
    """Measure everything over the same file."""
    path = folder / "spans.jsonl"
    size = write_spans(path, spans, agents, seed)
    load_before = os.getloadavg()
    cache = str(folder / "cache")
    rows = {
        FIRST_IMPORT: measure(IMPORT, str(path), cache),
        "kvtrace, first report": measure(KVTRACE, cache, str(path)),
        FROM_CACHE: measure(KVTRACE, cache, str(path)),
    }
    more = folder / "more.jsonl"
    write_spans(more, MORE_SPANS, MORE_AGENTS, seed + 1)
    rows["kvtrace, 10 agents more"] = measure(KVTRACE, cache, str(path), str(more))
    if by_hand:
        rows |= {name: measure(program, str(path)) for name, program in BY_HAND.items()}
    for row in rows.values():
        if "wall_s" in row:
            row["spans_per_s"] = round(spans / row["wall_s"])
            row["spans_per_cpu_s"] = round(spans / row["cpu_s"])
    return {
        "spans": spans,
        "agents": agents,
        "seed": seed,
        "bytes_per_span": round(size / spans),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "measured": rows,
        "times_as_long": {name: times_as_long(rows, name) for name in BY_HAND},
    }


def times_as_long(rows: Mapping[str, Mapping[str, Any]], by_hand: str) -> dict[str, float | None]:
    """How many times as long one figure takes by hand as the whole report does; ``None`` where one was not measured."""
    found = {}
    for short, against in (("first_import", FIRST_IMPORT), ("report_from_cache", FROM_CACHE)):
        for unit in ("wall", "cpu"):
            one, other = rows.get(by_hand, {}).get(f"{unit}_s"), rows[against].get(f"{unit}_s")
            found[f"{short}_{unit}"] = round(one / other, 2) if one and other else None
    return found


def main() -> None:
    """Measure, print a table, and add what was measured to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, nargs="+", default=[1_000_000], help="sizes to measure (default: 1000000)")
    parser.add_argument("--spans-per-agent", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by-hand-up-to", type=int, default=2_000_000, help="largest size for the ways by hand")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "report.json")
    chosen = parser.parse_args()
    sizes = []
    for spans in chosen.spans:
        with tempfile.TemporaryDirectory(prefix="kvtrace-benchmark-") as folder:
            agents = max(1, spans // chosen.spans_per_agent)
            size = compare(spans, agents, chosen.seed, Path(folder), spans <= chosen.by_hand_up_to)
        sizes.append(size)
        print(f"\n{spans:,} spans of {agents:,} agents, load {size['load_average']['before'][0]:.1f}")
        print(f"{'':<28}{'wall s':>9}{'cpu s':>9}{'spans/s':>11}{'per cpu s':>11}{'peak MB':>9}  tools/wall")
        for name, row in size["measured"].items():
            if "failed" in row:
                print(f"{name:<28}  {row['failed']}")
                continue
            figures = f"{row['wall_s']:>9}{row['cpu_s']:>9}{row['spans_per_s']:>11,}{row['spans_per_cpu_s']:>11,}"
            print(f"{name:<28}{figures}{row['peak_mb']:>9}  {row['tool_union_over_wall'] or ''}")
        for name, times in size["times_as_long"].items():
            said = ", ".join(f"{against} {value}x" for against, value in times.items() if value is not None)
            print(f"{name}, times as long as {said or 'anything: not measured'}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(
        json.dumps({"machine": describe("kvtrace", "duckdb", "msgspec", "pandas"), "sizes": sizes}, indent=2) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
