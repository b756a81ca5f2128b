"""GGUF files converted once into the user's cache, since transformers takes many seconds to read one.

A conversion is a folder ``models/<name>-<content hash>-<dtype>`` of safetensors and tokenizer files. It is written
under another name and renamed when complete, under a lock that other processes wait for, so that a folder of the
final name is whole. A manifest holds the sizes of its files; a folder that does not match is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import platformdirs
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvtrace.tracer.attributes import ENV_CACHE

from ..errors import ModelError

_MANIFEST: Final = "kvtrace.json"
_MADE_BY: Final = f"conversion 1, transformers {transformers.__version__}"  # another one's work is made again


def cache_root() -> Path:
    """The folder that holds everything kvtrace caches."""
    return Path(os.environ.get(ENV_CACHE) or platformdirs.user_cache_dir("kvtrace"))


def converted(gguf: Path, dtype: torch.dtype, on_phase: Callable[[str], None]) -> Path:
    """The folder with ``gguf`` converted to ``dtype``; made now unless it is there already.

    Raises:
        ModelError: the file cannot be read, or the cache cannot be written.
    """
    try:
        with gguf.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise ModelError(f"cannot read {gguf}: {error.strerror}") from error
    folder = cache_root() / "models" / f"{gguf.stem}-{content}-{str(dtype).removeprefix('torch.')}"
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            if not is_whole(folder):
                on_phase(f"converting {gguf.name} (once; this takes a while)")
                _make(gguf, dtype, folder)
    except OSError as error:
        raise ModelError(
            f"cannot keep the converted {gguf.name} in {folder.parent}: {error}; set {ENV_CACHE} to a folder with room"
        ) from error
    return folder


def is_whole(folder: Path) -> bool:
    """Whether ``folder`` holds a conversion by these versions, every file at its recorded size."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(manifest.get("made_by") == _MADE_BY and sizes and sizes == manifest["files"])


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the right to make ``folder``; the system gives it back when a process dies."""
    with folder.with_name(folder.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(gguf: Path, dtype: torch.dtype, folder: Path) -> None:
    """Convert into a folder of another name, then rename. Called under the lock: partial folders have no owner."""
    prefix = f".{folder.name}."
    _remove(folder.parent, prefix)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        _convert(gguf, dtype, partial)
        files = [path for path in partial.iterdir() if path.is_file()]
        manifest = {"made_by": _MADE_BY, "files": {path.name: path.stat().st_size for path in files}}
        (partial / _MANIFEST).write_text(json.dumps(manifest), "utf-8")
        for path in partial.iterdir():
            _sync(path)
        if folder.exists():
            folder.rename(partial.with_name(partial.name + "-old"))
        partial.rename(folder)
    finally:
        _remove(folder.parent, prefix)


def _remove(parent: Path, prefix: str) -> None:
    for path in parent.iterdir():
        if path.name.startswith(prefix):
            shutil.rmtree(path, ignore_errors=True)


def _convert(gguf: Path, dtype: torch.dtype, target: Path) -> None:
    try:
        model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except Exception as error:  # the tokenizers library raises Exception itself
        raise ModelError(f"transformers cannot read {gguf}: {error}") from error
    # The weights were unpacked; with these two left in place save_pretrained refuses a model that came from GGUF.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _sync(path: Path) -> None:
    """Have the file on disk before the rename is, so that a power cut leaves the old name or the whole file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
