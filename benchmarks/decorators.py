"""Conformance and overhead of kvtrace's decorator and of seven others: ``python benchmarks/decorators.py``.

Each library is installed into a throw-away environment, runs ``tests/conformance`` through its adapter, and then times a
call. Writes ``results/decorators.json`` and prints the table that the README shows. Installing needs a package index;
the runs themselves send nothing. ``--environments DIR`` keeps the environments for the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from machine import describe

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "decorators.json"
COMMON = ("pytest", "pytest-timeout", "platformdirs", "opentelemetry-sdk")
INSTALL_S = 600
CASE_S = 10
SIZES = ("1 B", "200 kB", "10 MB")


@dataclass(frozen=True)
class Peer:
    """One library: its distribution, its adapter, and its overhead adapter where that is another."""

    title: str
    distribution: str | None
    adapter: str
    overhead: str | None = None
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()  # installed without what they depend on


# traceloop-sdk asks for thirty instrumentations, whose resolution does not end in ten minutes; its decorator needs none.
PEERS = (
    Peer("kvtrace", None, "tests/conformance/adapter.py:KvtraceAdapter", "KvtraceOverhead"),
    Peer("plain OpenTelemetry", "opentelemetry-sdk", "OtelAdapter"),
    Peer("Logfire", "logfire", "LogfireAdapter", packages=("logfire",)),
    Peer("Langfuse", "langfuse", "LangfuseAdapter", packages=("langfuse",)),
    Peer(
        "OpenLLMetry",
        "traceloop-sdk",
        "TraceloopAdapter",
        packages=(
            *("aiohttp", "colorama", "deprecated", "httpx", "jinja2", "pydantic", "tenacity"),
            *("opentelemetry-exporter-otlp-proto-http", "opentelemetry-exporter-otlp-proto-grpc"),
            *("opentelemetry-instrumentation-logging", "opentelemetry-instrumentation-threading"),
            "opentelemetry-semantic-conventions-ai",
        ),
        alone=("traceloop-sdk", "cuid"),
    ),
    Peer(
        "OpenInference",
        "openinference-instrumentation",
        "OpenInferenceAdapter",
        packages=("openinference-instrumentation",),
    ),
    Peer("LangSmith", "langsmith", "LangsmithAdapter", packages=("langsmith",)),
)


def install(peer: Peer, folder: Path) -> Path:
    """Return the Python of the library's environment, made if it is not there."""
    python = folder / "bin" / "python"
    if python.exists() and (folder / "complete").exists():
        return python
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *COMMON, *peer.packages], timeout=INSTALL_S)
    if peer.alone:
        run([*pip, "--no-deps", *peer.alone], timeout=INSTALL_S)
    (folder / "complete").touch()
    return python


def conformance(peer: Peer, python: Path, scratch: Path) -> dict[str, Any]:
    """Run the suite; a case counts as passed if all its variants do."""
    report = scratch / f"{peer.adapter.rpartition(':')[2]}.xml"
    adapter = peer.adapter if ":" in peer.adapter else f"benchmarks/peer_adapters.py:{peer.adapter}"
    options = ["-p", "no:cacheprovider", "-o", "filterwarnings=", "-W", "ignore", "--timeout", str(CASE_S), "-q"]
    command = [str(python), "-m", "pytest", "tests/conformance", *options, f"--junitxml={report}"]
    run(command, timeout=600, check=False, environment=environment() | {"CONFORMANCE_ADAPTER": adapter})
    failed: set[str] = set()
    cases: set[str] = set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        cases.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
    return {"cases": len(cases), "passed": len(cases) - len(failed), "failed": sorted(failed)}


def overhead(peer: Peer, python: Path) -> dict[str, Any]:
    """Time calls in the library's environment."""
    done = run([str(python), "benchmarks/peer_overhead.py", peer.overhead or peer.adapter], timeout=120)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def version(peer: Peer, python: Path) -> str:
    """Return the library's version."""
    if peer.distribution is None:
        return "this checkout"
    code = f"from importlib.metadata import version; print(version({peer.distribution!r}))"
    return run([str(python), "-c", code], timeout=60).stdout.strip()


def examine(peer: Peer, environments: Path) -> dict[str, Any]:
    """Return all figures of one library, or why there are none."""
    print(f"{peer.title} ...", file=sys.stderr, flush=True)
    try:
        python = install(peer, environments / peer.adapter.rpartition(":")[2])
        found = {"version": version(peer, python), "conformance": conformance(peer, python, environments)}
        return found | {"overhead": overhead(peer, python)}
    except subprocess.TimeoutExpired as error:
        return {"error": f"no end after {error.timeout:.0f} s: {Path(error.cmd[0]).name} {' '.join(error.cmd[1:4])}"}
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        return {"error": lines[-1] if lines else f"exit code {error.returncode}"}


def environment() -> dict[str, str]:
    """Return the environment of a run: this checkout's packages, and nothing of the caller's telemetry."""
    mine = {key: value for key, value in os.environ.items() if not key.startswith(("KVTRACE_", "OTEL_"))}
    path = os.pathsep.join(str(folder) for folder in (ROOT / "tests" / "mypy_path", ROOT))
    return mine | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run(
    command: list[str], *, timeout: float, check: bool = True, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout and keep its output."""
    surroundings = _ENVIRONMENT if environment is None else environment
    return subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=timeout, check=check
    )


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown: cases passed, then p50 (p99) in µs for each size, and the ratio."""
    head = [
        "decorator",
        "version",
        "cases passed",
        *(f"µs a call, {size}: p50 (p99)" for size in SIZES),
        "× plain span",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for title, result in results.items():
        if "error" in result:
            lines.append(f"| {title} | | could not be run: {result['error']} |" + " |" * (len(SIZES) + 1))
            continue
        cases, figures = result["conformance"], result["overhead"]
        cells = [f"{figures[size]['p50_us']:,.0f} ({figures[size]['p99_us']:,.0f})" for size in SIZES]
        passed = f"{cases['passed']} of {cases['cases']}"
        lines.append(
            f"| {title} | {result['version']} | {passed} | {' | '.join(cells)} | {figures['1 B']['ratio']:.1f} |"
        )
    return "\n".join(lines)


_ENVIRONMENT = environment()


def main() -> None:
    """Examine every library and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, help="folder for the libraries' environments, kept")
    parser.add_argument("--only", action="append", help="title of a library; others keep their earlier results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrace-peers-") as scratch:
        folder = options.environments or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = json.loads(RESULTS.read_text())["libraries"] if options.only and RESULTS.exists() else {}
        for peer in PEERS:
            if not options.only or peer.title in options.only:
                results[peer.title] = examine(peer, folder)
    ordered = {peer.title: results[peer.title] for peer in PEERS if peer.title in results}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema_version": 1, "machine": describe(), "libraries": ordered}
    RESULTS.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(ordered))


if __name__ == "__main__":
    main()
