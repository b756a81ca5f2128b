"""The tiny model with a short chat template that knows tools: our own instructions would not fit its context."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvtrace.engine.server.settings import ServerSettings

from .conftest import tiny_settings

TEMPLATE: Final = (
    "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}{% for m in messages %}"
    "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
)


def tiny_tools_settings(tiny: Path, folder: Path) -> ServerSettings:
    """Settings of a server on a copy of ``tiny`` made in ``folder``."""
    target = folder / "tiny-tools"
    shutil.copytree(tiny, target)
    (target / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return replace(tiny_settings(target), context_tokens=400, kv_vram_bytes=128 * 16 * 384, queue_requests=16)
