"""``kvtrace hook``: what Claude Code, and agents with hooks like its, run before and after each tool call."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

import click

_MOST_INPUT: Final = 64 << 20  # bytes; a tool's result comes along, and is not looked at
_ENGINE_TIMEOUT_S: Final = 0.1


class LenientCommand(click.Command):
    """A command that is never used wrongly: an exit code of 2 would forbid the agent its tool call."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; those that make no sense end the command with a line on stderr."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            click.echo(f"kvtrace hook: {error.format_message()}; this event is not recorded.", err=True)
            ctx.exit(0)


@click.command("hook", cls=LenientCommand)
@click.option("--agent", "agent_name", default="claude-code", show_default=True, help="Name of the agent in reports.")
def command(agent_name: str) -> None:
    """Record one hook event, read as JSON from stdin.

    For agents whose code is not yours: Claude Code runs it at PreToolUse, PostToolUse, PostToolUseFailure,
    PermissionRequest, UserPromptSubmit, Stop, SubagentStart, SubagentStop and SessionEnd. Writes spans to KVTRACE_DIR
    for `kvtrace report`, and tells the engine at KVTRACE_ENGINE when a tool starts and ends. No arguments, results or
    prompts are kept. Prints nothing, and always exits with 0: telemetry must never stop an agent.
    """
    try:
        if sys.stdin.isatty():
            click.echo("kvtrace hook: an agent's hooks write one event to stdin; see kvtrace hook --help", err=True)
        else:
            _record(agent_name, os.environ)
    except Exception as error:
        click.echo(f"kvtrace hook: {type(error).__name__}: {error}; this event is not recorded.", err=True)


def _record(agent_name: str, environment: Mapping[str, str]) -> None:
    from kvtrace.tracer import attributes as names
    from kvtrace.tracer.hook_events import plan, read_event
    from kvtrace.tracer.hook_store import HookStore, run_directory_of
    from kvtrace.tracer.settings import default_directory, is_disabled

    now_ns = time.time_ns()
    payload = sys.stdin.buffer.read(_MOST_INPUT)
    if is_disabled(environment):
        return
    event = read_event(json.loads(payload), agent_name)
    folder = run_directory_of(environment, default_directory(environment), event.session)
    store = HookStore(folder, event.session, agent_name)
    records = store.carry_out(plan(event, store.open_spans(), now_ns, store.last_ns or now_ns))
    if records and (url := environment.get(names.ENV_ENGINE)):
        _tell(url, records, environment)


def _tell(url: str, records: Sequence[str], environment: Mapping[str, str]) -> None:
    """Send the records of tools to the engine; without one that answers at once, they are on disk all the same."""
    from kvtrace.tracer.engine_address import EngineAddress, read_answer, read_key

    address = EngineAddress.parse(url)
    try:
        with address.connect(_ENGINE_TIMEOUT_S) as connection:
            head = address.head("application/json", read_key(environment))
            for record in records:
                body = record.encode()
                connection.sendall(head + b"%d\r\n\r\n" % len(body) + body)
                status, keep = read_answer(connection)
                if status >= 400:
                    raise ConnectionError(f"it answered with HTTP {status}")
                if not keep:
                    return
    except OSError as error:
        click.echo(f"kvtrace hook: the engine at {url} was not told: {error}.", err=True)
