"""What all tests share."""

from __future__ import annotations

import os

# Several test processes share a few cores. torch's threads spin while they wait for each other, which then takes the
# core from whoever they wait for: with one thread each, the engine's tests need a sixth of the processor time.
# Programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
