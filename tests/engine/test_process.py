from __future__ import annotations

import gc
import sys

from kvtrace.engine.process import TURN_S, own_process


def test_settings_of_the_process_hold_inside_and_are_put_back() -> None:
    before = (sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count())
    with own_process():
        assert sys.getswitchinterval() == TURN_S
        assert gc.get_freeze_count() > before[2]
        young, _, old = gc.get_threshold()
        # The copies of one agent's return are no reason to look for garbage among everything that lives.
        assert young > 4 * 425
        assert old > before[1][2]
    assert (sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count()) == before
