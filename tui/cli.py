"""The ``kvtrace`` command: a click group that imports a verb's module only when that verb runs."""

from __future__ import annotations

import importlib
import os
import sys
from typing import ClassVar, Final

import click

from .exits import CommandError, ExitCode

# Short helps stand here so that listing the commands imports none of them.
COMMANDS: Final[dict[str, str]] = {
    "bench": "Measure the link, the swap tier, the model's steps, and agents against a server.",
    "demo": "Run agents on a real model and watch their KV cache leave and return.",
    "doctor": "Print what this machine has, ready to paste into a bug report.",
    "hook": "Record one event of Claude Code's hooks, or of an agent's with hooks like them.",
    "plan": "Weigh swap against recompute for a card and a model, and replay a trace on it.",
    "ps": "List agents with their state, KV and b, once.",
    "report": "Tell how much of an agent's wall clock is blocked on tools, and what follows.",
    "run": "Run any Python agent traced, with no line of kvtrace in it.",
    "serve": "Serve a model over the OpenAI API; agents that wait for tools leave VRAM.",
    "top": "Watch the KV cache of your agents: where it is, who waits for which tool.",
}


class LazyGroup(click.Group):
    """A group whose commands live in ``kvtrace.tui.commands.<prefix><name>`` and are imported when they are run."""

    verbs: ClassVar[dict[str, str]] = COMMANDS
    prefix: ClassVar[str] = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; ``None`` where there is no such verb."""
        if cmd_name not in self.verbs:
            return None
        command = importlib.import_module(f"kvtrace.tui.commands.{self.prefix}{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by their short helps."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.verbs.items()))


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"kvtrace {version('kvtrace')}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Measure how long agents wait for tools, and let their KV cache leave VRAM meanwhile.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 cannot reach the server, 4 timeout, 5 no data or GPU, 130 interrupted.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line; never shows a traceback unless ``KVTRACE_TRACEBACK=1`` asks for one."""
    try:
        status = cli.main(args=args, prog_name="kvtrace", standalone_mode=False)
    except click.exceptions.Exit as done:
        status = done.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        status = ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        status = ExitCode.INTERRUPTED
    except click.ClickException as problem:
        problem.show()
        status = problem.exit_code
    except CommandError as problem:
        click.echo(f"kvtrace: {problem}", err=True)
        status = problem.code
    except BrokenPipeError:
        # The reader of our output went away (`kvtrace report | head`): leave quietly, and keep the interpreter
        # from failing again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = ExitCode.OK
    except Exception as problem:
        if os.environ.get("KVTRACE_TRACEBACK") == "1":
            raise
        click.echo(
            f"kvtrace: {type(problem).__name__}: {problem}\n"
            "This is a fault in kvtrace. Set KVTRACE_TRACEBACK=1 to see where it happened, and report it with the "
            "output of `kvtrace doctor`.",
            err=True,
        )
        status = ExitCode.FAILED
    sys.exit(int(status or 0))
