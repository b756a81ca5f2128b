"""Keep transformers' progress bars and warnings off the terminal while kvtrace loads a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from transformers import modeling_gguf_pytorch_utils as gguf_reader
from transformers.utils import logging as hf_logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Errors only, no bars, no Python warnings; the caller's settings come back afterwards."""
    verbosity = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    # This one module draws its bar with tqdm itself, past transformers' own switch.
    bar = getattr(gguf_reader, "tqdm", None)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if bar is not None:
        gguf_reader.tqdm = partial(bar, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
        if bar is not None:
            gguf_reader.tqdm = bar
