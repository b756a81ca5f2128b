"""``kvtrace run -- CMD…``: trace any Python agent without a line of kvtrace in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from kvtrace.tracer import attributes as names

_NOT_FOUND: Final = 127  # as shells and env(1) have it
_NOT_EXECUTABLE: Final = 126
_FORWARDED: Final = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--service-name", help="Name of the service in the records [default: OTEL_SERVICE_NAME].")
@click.option("--agent", "agent", metavar="NAME", help="Name of the agent that the command is.")
@click.option(
    "--agent-id", metavar="ID", help="Its id, where the engine must know it; all of the command is that agent."
)
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD [ARG]...")
@click.pass_context
def command(
    ctx: click.Context, service_name: str | None, agent: str | None, agent_id: str | None, arguments: tuple[str, ...]
) -> None:
    """Run CMD with every Python process in it traced: its model calls, tools and agents.

    The instrumentation packages that are installed beside CMD's Python are loaded as OpenTelemetry does it, and the
    spans go to KVTRACE_DIR, where `kvtrace report` finds them. Output, signals and the exit code are CMD's own; one that
    is killed by signal N gives 128+N.
    """
    environment = traced_environment(os.environ, service_name=service_name, agent=agent, agent_id=agent_id)
    ctx.exit(run_child(arguments, environment))


def traced_environment(
    base: Mapping[str, str], *, service_name: str | None = None, agent: str | None = None, agent_id: str | None = None
) -> dict[str, str]:
    """Return the environment that makes Python processes trace themselves."""
    from kvtrace.tracer.runtime import build_settings

    settings = build_settings()
    asked = {names.ENV_SERVICE_NAME: service_name, names.ENV_AGENT: agent, names.ENV_AGENT_ID: agent_id}
    hook = str(_hook_folder())
    others = [entry for entry in base.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != hook]
    return {
        **base,
        names.ENV_DIR: str(settings.directory),
        names.ENV_RUN: settings.run_id,
        names.ENV_AUTO: "1",
        "PYTHONPATH": os.pathsep.join([hook, *others]),
        **{name: value for name, value in asked.items() if value is not None},
    }


def run_child(arguments: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run a program to its end, hand it the signals that come here, and return its exit code as a shell would."""
    awaited = {*_FORWARDED, signal.SIGCHLD}
    # Blocked before the child is there, so that none is missed; awaited one by one below.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        child = _start(arguments, environment, before)
        if isinstance(child, int):
            return child
        while child.poll() is None:
            arrived = signal.sigwaitinfo(awaited)
            # What a terminal sends (by the kernel: code > 0) the child got itself, being in the same process group.
            if arrived.si_signo != signal.SIGCHLD and arrived.si_code <= 0:
                child.send_signal(arrived.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = child.returncode
    return 128 - code if code < 0 else code


def _start(
    arguments: tuple[str, ...], environment: Mapping[str, str], mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes] | int:
    sys.stdout.flush()
    try:
        return subprocess.Popen(
            arguments, env=environment, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        )
    except FileNotFoundError:
        click.echo(f"kvtrace run: {arguments[0]}: no such command; check the spelling or give its path", err=True)
        return _NOT_FOUND
    except OSError as error:
        click.echo(f"kvtrace run: {arguments[0]}: {error.strerror or error}", err=True)
        return _NOT_EXECUTABLE


def _hook_folder() -> Path:
    """Return the folder whose sitecustomize sets up a process, without importing that module here."""
    from kvtrace.tracer import runtime

    return Path(runtime.__file__).with_name("zero_code")
