"""A process that reads batches: ``python -m kvtrace.analysis.worker``, a batch a line in, its parts a line out.

Started as a program, never forked: the database has threads, and a caller's module may not be safe to import twice.
"""

from __future__ import annotations

import sys

import msgspec

from .packing import Batch, read_batch


def main() -> None:
    """Answer each batch until there are no more."""
    decode = msgspec.json.Decoder(Batch).decode
    for line in sys.stdin.buffer:
        try:
            answer: dict[str, object] = {"parts": read_batch(decode(line))}
        except OSError as error:
            answer = {"errno": error.errno, "strerror": error.strerror or str(error)}
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
