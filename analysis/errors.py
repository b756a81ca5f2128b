"""What can go wrong before there is a report, each with its own class so that a command can map it to an exit code."""

from __future__ import annotations


class AnalysisError(Exception):
    """Base of every error this package raises on purpose; the message is one sentence for the user."""


class SourceNotFoundError(AnalysisError):
    """A path or pattern that was asked for names nothing."""


class NoDataError(AnalysisError):
    """Sources were found and read, but no figure can come out of them; the message says why."""


class ModelFileError(AnalysisError):
    """A model's configuration or header cannot be read, or does not say what its cache looks like."""


class UnreachableError(AnalysisError):
    """A database does not answer."""


class DatabaseError(AnalysisError):
    """A database answers that it cannot or may not do what it was asked."""


class MissingExtraError(AnalysisError):
    """Something was asked for that needs a package of an extra which is not installed."""
