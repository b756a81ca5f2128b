"""``python -m kvtrace.tui``: the same as the ``kvtrace`` script."""

from .cli import main

main()
