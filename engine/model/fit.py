"""Whether a model's weights fit, told from its files before minutes go into loading them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Final

from ..device import DeviceMemory, gib
from ..errors import ModelError

_MOST_HEADER: Final = 100 << 20  # bytes; the format's own limit


def refuse_too_large(location: str, model_id: str, element_bytes: int, memory: DeviceMemory) -> None:
    """Refuse a model whose weights alone are larger than what is free.

    Args:
        location: folder that is loaded; of anything else nothing is known yet.
        model_id: named in the message.
        element_bytes: of a weight on the device.
        memory: the device's; where nothing is known of it, nothing is refused.

    Raises:
        ModelError: need, free, who holds the rest, and what to try.
    """
    need = stored_elements(Path(location)) * element_bytes
    if memory.total_bytes and need > memory.free_bytes:
        raise ModelError(
            f"{model_id} needs {gib(need)} for its weights alone, at {8 * element_bytes} bit, but {memory.described}: "
            "stop what holds the memory, or choose a smaller model"
        )


def stored_elements(folder: Path) -> int:
    """How many numbers the ``.safetensors`` files of ``folder`` hold; 0 where there are none that can be read."""
    return sum(map(_elements, sorted(folder.glob("*.safetensors")))) if folder.is_dir() else 0


def _elements(file: Path) -> int:
    """The sum over a file's header, which is JSON behind its length as eight bytes."""
    try:
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(min(size, _MOST_HEADER)))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Whoever loads the file says what is wrong with it.
        return 0
