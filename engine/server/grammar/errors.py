"""Refusals that name the field of the request that caused them."""

from __future__ import annotations

from ...errors import RequestRefused


class FieldRefused(RequestRefused):
    """A field of the request cannot be served; ``param`` is its path, as in ``tools[0].function.parameters``."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
