"""Widgets of ``kvtrace top``: each draws lines that :mod:`kvtrace.tui.top` has made."""
