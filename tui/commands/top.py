"""``kvtrace top``: see the memory, see who waits; and the same as text, as JSON, as a stream of JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..exits import CommandError, ExitCode

if TYPE_CHECKING:
    from ..feed.choose import Wanted
    from ..feed.contract import Feed, Sample
    from ..gpu import GpuProbe
    from ..top.lines import Line
    from ..top.settings import TopSettings
    from ..top.view import View

LEAST_INTERVAL_S: Final = 0.25
MOST_INTERVAL_S: Final = 60.0
_COLOURED: Final = frozenset(
    {"generating", "restoring", "queued", "waiting", "parking", "resident", "parked", "reclaimable", "other", "host"}
)
SORTS: Final = ("agent", "state", "for", "ctx", "vram", "host", "tok/s", "b", "parks")


@click.command("top")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--url", metavar="URL", help="The server to watch.  [default: KVTRACE_ENGINE, else 127.0.0.1:8177]")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Play spans, or what --json --watch wrote.",
)
@click.option("--demo", is_flag=True, help="Watch a simulated engine: no server, no GPU.")
@click.option("--agents", type=click.IntRange(1, 5000), default=12, show_default=True, help="Agents of the demo.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the demo.")
@click.option(
    "--speed",
    type=click.FloatRange(1 / 16, 1024),
    default=1.0,
    show_default=True,
    help="How fast a replay or the demo goes.",
)
@click.option("-1", "--once", is_flag=True, help="Print it as text, once.")
@click.option("--json", "as_json", is_flag=True, help="Print one sample as JSON.")
@click.option("--watch", is_flag=True, help="With --json: a sample a line, until stopped.")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(LEAST_INTERVAL_S, MOST_INTERVAL_S),
    metavar="SECONDS",
    help="Seconds between two samples.  [default: 1]",
)
@click.option("--sort", type=click.Choice(SORTS), help="Column to sort by.  [default: agent]")
@click.option("--reverse", is_flag=True, help="Sort the other way round.")
@click.option("--filter", "words", default="", metavar="WORDS", help="Only agents whose name, state or tool has them.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII alone.")
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings instead of the user's own.")
def command(
    paths: tuple[Path, ...],
    url: str | None,
    replay: Path | None,
    demo: bool,
    agents: int,
    seed: int,
    speed: float,
    once: bool,
    as_json: bool,
    watch: bool,
    interval: float | None,
    sort: str | None,
    reverse: bool,
    words: str,
    ascii_only: bool,
    no_color: bool,
    config: Path | None,
) -> None:
    """Watch the KV cache of your agents: where it is, who waits for which tool.

    Without anything it finds the local server, else the spans recorded last. PATH names span files of agents that run
    without a server: their states and b, nothing of memory. `?` shows the keys.
    """
    from ..feed.choose import Wanted

    chosen = sum((url is not None, bool(paths), replay is not None, demo))
    if chosen > 1:
        raise click.UsageError("PATH, --url, --replay and --demo are different things to watch; choose one.")
    if watch and not as_json:
        raise click.UsageError("--watch goes with --json; without it the screen is live anyway.")
    if once and as_json:
        raise click.UsageError("--once prints text and --json prints JSON; choose one.")
    if speed != 1.0 and replay is None and not demo:
        raise click.UsageError("--speed is for --replay and --demo; the present goes at its own pace.")
    settings, view = _settings(config, interval, sort, reverse, words, ascii_only)
    if no_color:
        os.environ["NO_COLOR"] = "1"
    wanted = Wanted(url, paths, replay, demo, agents, seed, speed)
    if as_json:
        print_json(wanted, settings.interval_s if watch else None)
    elif once or not _has_terminal():
        if not once:
            click.echo("kvtrace: no terminal here, so this is printed once; --json --watch streams", err=True)
        print_once(wanted, view, whole=True)
    else:
        sys.exit(_run_screen(wanted, settings, view))


def _settings(
    config: Path | None, interval: float | None, sort: str | None, reverse: bool, words: str, ascii_only: bool
) -> tuple[TopSettings, View]:
    """What the command line says, over what the settings file says."""
    from ..top.settings import SettingsError, config_path, read_settings
    from ..top.view import Sort, View

    if config is not None and not config.is_file():
        raise click.UsageError(f"--config {config}: there is no such file")
    try:
        settings = read_settings(config or config_path())
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    settings = replace(
        settings,
        interval_s=settings.interval_s if interval is None else interval,
        sort=settings.sort if sort is None else Sort(sort),
    )
    plain = ascii_only or (settings.ascii_only if settings.ascii_only is not None else not _speaks_utf8())
    return settings, View(settings.sort, reverse, words, ascii_only=plain)


def _speaks_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _has_terminal() -> bool:
    """Whether a screen can be drawn and keys be read: Textual draws on stderr, people expect stdout.

    Under `textual serve` a browser is the terminal, and Textual's own variable says so.
    """
    if os.environ.get("TEXTUAL_DRIVER"):
        return True
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"


def open_feed(wanted: Wanted) -> Feed:
    """The feed that was asked for; a bad address or file ends the command."""
    from ..feed.choose import choose_feed
    from ..feed.contract import FeedError

    try:
        return choose_feed(wanted)
    except FeedError as error:
        raise CommandError(str(error), ExitCode.NO_DATA) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def read_first(feed: Feed) -> list[Sample]:
    """The first samples of a feed; without any the command ends."""
    from ..feed.contract import FeedError

    try:
        return feed.read()
    except FeedError as error:
        why = str(error)
        if feed.where not in why:
            why = f"{feed.where} cannot be asked: {why}; is `kvtrace serve` running there?"
        raise CommandError(why, ExitCode.UNREACHABLE) from error
    finally:
        feed.close()


def _read_once(wanted: Wanted) -> list[Sample]:
    """The first samples of what is looked at only once; files without any agent end the command."""
    samples = read_first(open_feed(replace(wanted, at_end=True)))
    if wanted.paths and not samples[-1].snapshot.agents:
        names = ", ".join(map(str, wanted.paths))
        raise CommandError(f"no agent's span is in {names}: is it a span file, or a folder of them?", ExitCode.NO_DATA)
    return samples


def print_once(wanted: Wanted, view: View, *, whole: bool) -> None:
    """Print one sample as text."""
    from ..top.history import History
    from ..top.once import once_lines

    samples = _read_once(wanted)
    history = History()
    for sample in samples:
        history.add(sample)
    _print_lines(once_lines(samples[-1], history, view, _text_width(), whole=whole))


def _print_lines(lines: list[Line]) -> None:
    """Print lines, in colour where stdout shows it; blanks at their ends are left out."""
    from rich.text import Text

    from ..console import PipedConsole
    from ..theme import palette
    from ..top.lines import text_of

    console = PipedConsole(highlight=False)
    if console.color_system is None:
        for line in lines:
            click.echo(text_of(line).rstrip())
        return
    styles = palette(dark=True, colour=not console.no_color)
    for line in lines:
        # The terminal's own colours for what is not special: nobody knows whether it is dark or light.
        pieces = [(text, styles[style].partition(" on ")[0] if style in _COLOURED else "") for text, style in line]
        console.print(Text.assemble(*pieces), soft_wrap=True)


def _text_width() -> int:
    """Cells of a line: the terminal's, or ``COLUMNS``."""
    return max(20, shutil.get_terminal_size((100, 24)).columns)


def print_json(wanted: Wanted, interval_s: float | None) -> None:
    """Print one sample as JSON, or one every ``interval_s`` seconds, each on a line of its own."""
    wanted = replace(wanted, names=False)
    if interval_s is None:
        click.echo(json.dumps(_read_once(wanted)[-1].as_json(), indent=2))
        return
    from ..feed.contract import FeedError

    feed, lost = open_feed(wanted), False
    while True:
        began = time.monotonic()
        try:
            for sample in feed.read():
                click.echo(json.dumps(sample.as_json(), separators=(",", ":")))
            lost = False
            if feed.over:
                return
        except FeedError as error:
            # On stderr and once: stdout has samples and nothing else.
            if not lost:
                click.echo(f"kvtrace: {error}; asking again", err=True)
            lost = True
        time.sleep(max(0.0, interval_s - (time.monotonic() - began)))


def _run_screen(wanted: Wanted, settings: TopSettings, view: View) -> int:
    from ..app import TopApp

    for name in ("COLUMNS", "LINES"):
        # A size in the environment would hold for ever, whatever becomes of the terminal's own.
        os.environ.pop(name, None)
    feed = open_feed(wanted)
    app = TopApp(feed, settings, view=view, probe=_probe(wanted))
    status = app.run()
    return int(ExitCode.FAILED if app.return_code else status or ExitCode.OK)


def _probe(wanted: Wanted) -> GpuProbe | None:
    """What asks the GPU itself: where the server that is watched, if any, is on this machine."""
    from ..feed.http import ServerAddress, default_address
    from ..gpu import GpuProbe

    if wanted.demo or wanted.replay is not None or wanted.paths:
        return None
    address = default_address() if wanted.url is None else ServerAddress.parse(wanted.url)
    return GpuProbe() if address.is_local else None
