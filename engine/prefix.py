"""Content keys of KV blocks: a hash chain over token ids, so that equal prefixes have equal keys. Torch-free."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

ROOT: Final = b""
"""The parent key of a context's first block, unless the context has a salt."""

_KEY_BYTES: Final = 16
_SHORT: Final = 32


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Key of a full block: 16 bytes that stand for ``tokens`` and, through ``parent``, for all tokens before them."""
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=_KEY_BYTES).digest()


def root_key(salt: str | None) -> bytes:
    """The parent key of the first block: contexts with different salts never share a block."""
    return ROOT if salt is None else blake2b(salt.encode(), digest_size=_KEY_BYTES, person=b"kvtrace salt").digest()


def extend_keys(keys: list[bytes], tokens: Sequence[int], block_tokens: int, root: bytes = ROOT) -> None:
    """Append to ``keys`` the keys of the full blocks of ``tokens`` that it does not cover yet."""
    for start in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        keys.append(block_key(keys[-1] if keys else root, tokens[start : start + block_tokens]))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two contexts share. Fast for long ones, which mostly agree."""
    shared = min(len(left), len(right))
    if shared <= _SHORT:
        return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), shared)
    one, other = _bytes(left[:shared]), _bytes(right[:shared])
    if one == other:
        return shared
    low, high = 0, shared  # the first difference lies in tokens low … high - 1
    while high - low > 1:
        middle = (low + high) // 2
        if one[4 * low : 4 * middle] == other[4 * low : 4 * middle]:
            low = middle
        else:
            high = middle
    return low


def _bytes(tokens: Sequence[int]) -> bytes:
    packed = tokens if isinstance(tokens, array) else array("I", tokens)
    return packed.tobytes()
