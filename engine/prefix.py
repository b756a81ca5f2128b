"""Content keys of KV blocks: a hash chain over token ids, so that equal prefixes have equal keys. Torch-free."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

ROOT: Final = b""
"""The parent key of a context's first block."""

_KEY_BYTES: Final = 16


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Key of a full block: 16 bytes that stand for ``tokens`` and, through ``parent``, for all tokens before them."""
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=_KEY_BYTES).digest()


def extend_keys(keys: list[bytes], tokens: Sequence[int], block_tokens: int) -> None:
    """Append to ``keys`` the keys of the full blocks of ``tokens`` that it does not cover yet."""
    for start in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        keys.append(block_key(keys[-1] if keys else ROOT, tokens[start : start + block_tokens]))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two contexts share."""
    shared = min(len(left), len(right))
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), shared)
