"""Screens of ``kvtrace top``."""
