"""One verb a file; each module's ``command`` is what :mod:`kvtrace.tui.cli` runs."""
