"""What all tests share."""

from __future__ import annotations

import os
import signal

# Several test processes share a few cores. torch's threads spin while they wait for each other, which then takes the
# core from whoever they wait for: with one thread each, the engine's tests need a sixth of the processor time.
# Programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background jobs ignore SIGINT, and so would every program that tests start and interrupt from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
