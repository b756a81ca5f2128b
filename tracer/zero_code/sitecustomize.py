"""Python runs this first in every process below ``kvtrace run``, which puts the folder at the head of PYTHONPATH."""

from __future__ import annotations

import importlib.util
import os
import sys


def _start() -> None:
    try:
        from kvtrace.tracer.autostart import start
    except ImportError as error:
        if os.environ.get("KVTRACE_AUTO") == "1":
            os.environ["KVTRACE_AUTO"] = "said"
            line = f"kvtrace: {sys.executable} cannot load kvtrace ({error}), so nothing is traced: pip install kvtrace"
            print(line, file=sys.stderr)  # noqa: T201 - no logging is set up yet
        return
    start()


def _run_hidden() -> None:
    """Run the sitecustomize that this one hides, if the environment has one of its own."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not worth its import here
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    this = sys.modules.pop("sitecustomize", None)
    try:
        spec = importlib.util.find_spec("sitecustomize")
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            this = module
    finally:
        sys.path[:] = before
        if this is not None:
            sys.modules["sitecustomize"] = this


_start()
_run_hidden()
