"""A rich console whose reader may go away."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class PipedConsole(Console):
    """Raises :class:`BrokenPipeError`, which the command line ends quietly on, where rich would exit with 1."""

    def on_broken_pipe(self) -> NoReturn:
        """Say so by an exception: rich's way out ends only the thread that happened to print."""
        raise BrokenPipeError
