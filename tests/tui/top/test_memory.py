"""The panels about memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtrace.tui.top.history import History
from kvtrace.tui.top.lines import text_of
from kvtrace.tui.top.memory import panels
from kvtrace.tui.top.view import Layout

from .conftest import record, sample


@pytest.mark.parametrize(("width", "layout"), [(200, Layout.WIDE), (100, Layout.MEDIUM), (70, Layout.COMPACT)])
def test_a_pool_full_of_what_can_go_at_once_is_not_called_full(width: int, layout: Layout) -> None:
    one = sample(record(), at_s=0)
    tiers = one.snapshot.tiers
    vram = replace(
        tiers.vram,
        kv_pool_bytes=10_000_000_000,
        kv_active_bytes=2_500_000_000,
        kv_reclaimable_bytes=7_500_000_000,
        kv_free_bytes=0,
    )
    one = replace(one, snapshot=replace(one.snapshot, tiers=replace(tiers, vram=vram)))
    history = History()
    history.add(one)
    said = text_of(panels(one, history, width, layout, ascii_only=True)[0])
    assert "25%" in said
    assert "100%" not in said


def test_small_tiers_are_said_in_megabytes_alone() -> None:
    one = sample(record(), at_s=0)
    tiers = one.snapshot.tiers
    host = replace(
        tiers.host, used_bytes=11_800_000, total_bytes=12_600_000, free_bytes=800_000, pinned_bytes=5_000_000
    )
    one = replace(one, snapshot=replace(one.snapshot, tiers=replace(tiers, host=host)))
    history = History()
    history.add(one)
    said = text_of(panels(one, history, 200, Layout.WIDE, ascii_only=True)[1])
    assert "12/13 MB" in said
    assert "5 MB pinned" in said
    assert "GB" not in said
