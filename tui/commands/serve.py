"""``kvtrace serve``: an OpenAI-compatible server that parks the KV cache of agents while they wait for tools."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtrace.engine.geometry import BLOCK_SIZES

from ..exits import CommandError, ExitCode
from ..sizes import Size

if TYPE_CHECKING:
    from rich.console import Console

    from kvtrace.engine.server.launch import Launched
    from kvtrace.engine.server.loading import Started
    from kvtrace.engine.server.settings import ServerSettings

_COUNT = click.IntRange(min=1)
_LOOPBACK = ("127.", "::1", "localhost")
_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_OPTIONS = {
    "context_tokens": "--context",
    "step_tokens": "--step-tokens",
    "mixed_step_tokens": "--mixed-step-tokens",
    "slots": "--slots",
    "queue_requests": "--queue",
    "max_agents": "--max-agents",
}
_SETTING = re.compile(rf"(?<![\w-])({'|'.join(_OPTIONS)})(?= is | to at least|$)")


def _named_device(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise click.BadParameter(f"{name!r} is none of auto, cpu, cuda, cuda:N; ROCm's cards are cuda too")
    return name


@click.command("serve")
@click.argument("model", default="smollm2")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8177, show_default=True, help="0 takes a free one.")
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the key that requests must bear; KVTRACE_API_KEY does as well.",
)
@click.option("--kv-vram", type=Size(), help="Device memory for KV, as 8GiB.  [default: what is free less a margin]")
@click.option("--kv-host", type=Size(), help="Host memory for parked KV.  [default: half of the available memory]")
@click.option("--slots", type=_COUNT, default=8, show_default=True, help="Sequences that decode together.")
@click.option(
    "--policy",
    type=click.Choice(["auto", "swap", "eager", "recompute", "keep"]),
    default="auto",
    show_default=True,
    help="What happens to a waiting agent's KV.",
)
@click.option(
    "--forecast",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="How long tools take, from `kvtrace report --forecast FILE`; auto learns it otherwise.",
)
@click.option("--max-agents", type=_COUNT, help="Most agents in the middle of their turns; others wait.")
@click.option(
    "--context", type=click.IntRange(min=2), help="Longest prompt plus answer, tokens.  [default: the model's]"
)
@click.option("--step-tokens", type=_COUNT, help="Most tokens of one forward step.")
@click.option("--mixed-step-tokens", type=_COUNT, help="Most tokens of a step in which nearly all slots decode.")
@click.option(
    "--block-tokens",
    type=click.Choice([str(size) for size in BLOCK_SIZES]),
    help="Tokens of a KV block.  [default: 32 on a GPU, else 16]",
)
@click.option("--queue", type=_COUNT, default=256, show_default=True, help="Most requests that wait; then 429.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    callback=_named_device,
    help="cpu, cuda or cuda:N; ROCm's cards are cuda too.",
)
@click.option("--alias", "aliases", multiple=True, metavar="NAME", help="Further name of the model; * takes any.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Further Host name that requests may use.")
@click.option(
    "--allow-origin", multiple=True, metavar="ORIGIN", help="Web page that may call, as http://localhost:3000."
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds open requests may take at the end.",
)
@click.option("--vllm-metrics", is_flag=True, help="Give /metrics vLLM's names as well.")
def command(model: str, **options: Any) -> None:
    """Serve MODEL over the OpenAI API and park the KV cache of agents that wait for tools.

    MODEL is `smollm2` (embedded), a folder with a transformers model, a GGUF file, or a Hugging Face id. The server
    listens at once and answers when the model is loaded. Ctrl-C lets open requests end; a second one does not wait.
    """
    from ..console import PipedConsole

    talk = PipedConsole(stderr=True, highlight=False, soft_wrap=True)
    settings = _settings(model, options)
    server = _launch(settings, talk, _key_header(options["api_key_file"]) if settings.api_key else "")
    wide = ", and on every other address of this machine" if settings.host in _EVERY_ADDRESS else ""
    talk.print(f"listening on {server.url}{wide}; /health says when {model} is ready")
    if settings.api_key is None and not settings.host.startswith(_LOOPBACK):
        talk.print(
            f"[bold]warning[/bold]: anybody who reaches {settings.host} may use this server; give --api-key-file"
        )
    _run(server)
    if server.loading:
        talk.print("stopped while the model was loading")
        _leave(ExitCode.INTERRUPTED if server.forced else ExitCode.OK)
    if server.forced:
        raise CommandError("stopped without waiting for open requests", ExitCode.INTERRUPTED)
    talk.print("stopped")


def _settings(model: str, options: dict[str, Any]) -> ServerSettings:
    from kvtrace.engine.config import PolicyMode
    from kvtrace.engine.errors import ConfigError
    from kvtrace.engine.server.settings import ServerSettings

    try:
        return ServerSettings(
            source=model,
            host=options["host"],
            port=options["port"],
            api_key=_key(options["api_key_file"]),
            allowed_hosts=options["allow_host"],
            allowed_origins=options["allow_origin"],
            aliases=options["aliases"],
            device=options["device"],
            kv_vram_bytes=options["kv_vram"],
            kv_host_bytes=options["kv_host"],
            slots=options["slots"],
            policy=PolicyMode(options["policy"]),
            forecast=_forecast(options["forecast"]),
            max_agents=options["max_agents"],
            context_tokens=options["context"],
            step_tokens=options["step_tokens"],
            mixed_step_tokens=options["mixed_step_tokens"],
            block_tokens=None if options["block_tokens"] is None else int(options["block_tokens"]),
            queue_requests=options["queue"],
            drain_s=options["drain"],
            vllm_metrics=options["vllm_metrics"],
        )
    except (ConfigError, ValueError) as error:
        raise click.UsageError(_in_options(str(error))) from error


def _forecast(file: Path | None) -> dict[str, Any] | None:
    """What the file says, refused now rather than when the model is loaded."""
    from kvtrace.engine.forecast import Forecasts

    if file is None:
        return None
    Forecasts.load(file)
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def _key(file: Path | None) -> str | None:
    """The bearer key; the file wins over the environment. An empty one is a mistake, not an open door."""
    import os

    if file is None and "KVTRACE_API_KEY" not in os.environ:
        return None
    try:
        key = (os.environ["KVTRACE_API_KEY"] if file is None else file.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the API key from {file}: {error}") from error
    where = "KVTRACE_API_KEY" if file is None else str(file)
    if not key or not (key.isascii() and key.isprintable()):
        raise CommandError(f"the API key in {where} is empty or no printable ASCII: write one line of it")
    return key


def _key_header(file: Path | None) -> str:
    """What a shell adds to curl for the key, which itself is never printed."""
    key = "$KVTRACE_API_KEY" if file is None else f"$(cat {shlex.quote(str(file))})"
    return f' -H "Authorization: Bearer {key}"'


def _launch(settings: ServerSettings, talk: Console, key_header: str) -> Launched:
    from kvtrace.engine.errors import EngineError

    try:
        from kvtrace.engine.process import own_process
        from kvtrace.engine.server.launch import Launched
    except ImportError as error:
        raise CommandError(f"{error.name} is not installed; run: pip install 'kvtrace[engine]'") from error

    def ready(started: Started) -> None:
        own_process()
        _banner(talk, server.url, started, key_header)

    try:
        server = Launched(settings, lambda phase, seconds: talk.print(f"{seconds:6.1f} s  {phase}"), ready)
    except EngineError as error:
        raise CommandError(_in_options(str(error))) from error
    return server


def _run(server: Launched) -> None:
    from kvtrace.engine.errors import EngineError, NotInstalled
    from kvtrace.engine.server.loading import NoGpu

    try:
        server.run()
    except NoGpu as error:
        raise CommandError(str(error), ExitCode.NO_DATA) from error
    except ModuleNotFoundError as error:
        if isinstance(error, NotInstalled):
            raise CommandError(str(error)) from error
        raise CommandError(f"{error.name} is not installed; run: pip install 'kvtrace[engine]'") from error
    except EngineError as error:
        raise CommandError(_in_options(str(error))) from error


def _in_options(message: str) -> str:
    """``message`` of the engine with its settings called as the command line calls them."""
    return _SETTING.sub(lambda found: _OPTIONS[found[0]], message)


def _leave(code: ExitCode) -> None:
    """End the process without the interpreter's own end, which a thread that still loads may not survive."""
    import os

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _banner(talk: Console, url: str, started: Started, key_header: str) -> None:
    body = json.dumps({"model": started.model_id, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    parked = f"{started.host_tokens:,} tokens more of parked agents"
    if not started.host_tokens:
        parked = "none: what leaves there is computed again"
    rows = (
        ("URL", f"{url}/v1"),
        ("model", started.model_id),
        ("device", started.device),
        ("context", f"{started.context_tokens:,} tokens a request"),
        (
            "KV in VRAM" if started.device != "cpu" else "KV in RAM",
            f"{started.vram_tokens:,} tokens in blocks of {started.block_tokens}",
        ),
        ("KV on the host", parked),
        ("policy", started.policy),
    )
    talk.print(f"\nready after {started.seconds:.1f} s")
    for name, value in rows:
        talk.print(f"  {name:15}{value}", markup=False)
    talk.print(
        f"\n  curl {url}/v1/chat/completions{key_header} -H 'Content-Type: application/json' -d {shlex.quote(body)}\n",
        markup=False,
    )
    sys.stderr.flush()
