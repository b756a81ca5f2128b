"""What others published about the time agents wait for tools: rows to compare a measured b with.

None of it was measured here. Most are sums over calls where b is a union, and some leave out or add other time, as
each row's caveat says; a range is what the source gives as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """``b`` as it follows from a published share, from ``b_low`` to ``b_high``; both equal where there is one value."""

    source: str
    workload: str
    b_low: float
    b_high: float
    caveat: str


PUBLISHED: Final = (
    PublishedRow(
        "TraceLab, arXiv 2606.30560",
        "Claude Code and Codex, within a request",
        0.59,
        0.59,
        "sum over calls: tools 59.8 %, generation 41.0 %; approvals inside",
    ),
    PublishedRow(
        "AgentCgroup, arXiv 2602.09345",
        "SWE-style tasks, hosted model",
        0.43,
        0.43,
        "mean share of active time; median 0.35, tasks 0 to 0.86",
    ),
    PublishedRow(
        "AgentCgroup, arXiv 2602.09345", "SWE-style tasks, local GPU", 0.36, 0.36, "mean share of active time"
    ),
    PublishedRow(
        "AgentCgroup, arXiv 2602.09345",
        "the same, as the operating system sees it",
        0.56,
        0.74,
        "container start included, which happens once",
    ),
    PublishedRow(
        "Sutradhara, arXiv 2601.12967", "production requests", 0.30, 0.85, "share of the time to the first shown token"
    ),
    PublishedRow(
        "CPU-centric view, arXiv 2511.00739",
        "RAG, web, chemistry, SWE-Agent",
        0.40,
        0.90,
        "CPU side, small models; read in a secondary source",
    ),
    PublishedRow("arXiv 2510.16276", "web agents", 0.54, 0.54, "largest value reported; time of the web environment"),
    PublishedRow(
        "one harness's study", "1,801 runs with fast tools", 0.002, 0.006, "slow model, calls under a millisecond"
    ),
)
"""In the order in which they are shown."""
