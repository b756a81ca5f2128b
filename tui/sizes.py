"""Sizes on the command line: ``8GiB``, ``500MB``, or bytes."""

from __future__ import annotations

from typing import Any

import click


class Size(click.ParamType[int]):
    """Bytes, written with a unit or without."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; what is no size is a usage error that names the option."""
        from kvtrace.engine.errors import ConfigError
        from kvtrace.engine.sizing import parse_bytes

        try:
            return value if isinstance(value, int) else parse_bytes(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
