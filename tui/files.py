"""Writing what the user asked for into the file they named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

import click

from .exits import CommandError


def write_text(path: Path, text: str) -> None:
    """Write ``text`` and a newline, replacing what was there, and say so on stderr.

    Raises :class:`CommandError` with the path and the reason where that fails.
    """
    write_bytes(path, lambda file: file.write(f"{text}\n".encode()))


def write_bytes(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Let ``fill`` write the file, replacing what was there, and say so on stderr.

    Raises :class:`CommandError` with the path and the reason where that fails.
    """
    try:
        with path.open("wb") as file:
            fill(file)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)
