"""``kvtrace bench``: one verb a module, imported when it runs."""

from __future__ import annotations

from typing import ClassVar, Final

import click

from ..cli import LazyGroup

# Short helps stand here so that listing the verbs imports none of them; each lives in ``bench_<verb>.py``.
VERBS: Final[dict[str, str]] = {
    "agents": "Many agents against one server, measured beside what the card could do at best.",
    "decode": "A decoding step of a model, against what the memory allows.",
    "link": "Raw copies between host and device, and why the size of a block matters.",
    "prefill": "How fast a prompt that nobody has seen is computed.",
    "return": "An agent that comes back from a tool: its first token, by where its KV is.",
    "swap": "An agent's KV out and back through the engine's own tiers, against the raw link.",
}


class BenchGroup(LazyGroup):
    """The verbs of ``kvtrace bench``."""

    verbs: ClassVar[dict[str, str]] = VERBS
    prefix: ClassVar[str] = "bench_"


@click.group("bench", cls=BenchGroup)
def command() -> None:
    """Measure this machine: medians, each beside the physical limit it is compared with.

    `link` and `swap` run on a CPU as well.
    """
