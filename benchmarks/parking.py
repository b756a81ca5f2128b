"""What parking costs other agents, and that it changes no token: ``python benchmarks/parking.py [--json FILE]``.

See :mod:`kvtrace.engine.bench.parking` for the questions. On a GPU with Qwen3-8B's geometry and random weights, on a CPU
with the embedded model and small sizes. stdout is a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from kvtrace.engine.bench.machine import machine
from kvtrace.engine.bench.parking import CPU_SETUP, GPU_SETUP, measure_parking
from kvtrace.engine.device import find_device
from kvtrace.engine.model import load_model

SCHEMA_VERSION = 1


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:N; cuda where there is one")
    parser.add_argument("--model", help="what `kvtrace serve` takes; random:qwen3-8b on a GPU, else smollm2")
    parser.add_argument("--seconds", type=float, help="how long the others are watched, each way")
    parser.add_argument("--parks", type=int, help="parks in the comparison of tokens")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    device = find_device(arguments.device)
    setup = CPU_SETUP if device.type == "cpu" else GPU_SETUP
    setup = replace(setup, seconds=arguments.seconds or setup.seconds, parks=arguments.parks or setup.parks)

    def tell(phase: str) -> None:
        print(phase, file=sys.stderr, flush=True)

    model = load_model(
        arguments.model or ("smollm2" if device.type == "cpu" else "random:qwen3-8b"), device=device, on_phase=tell
    )
    gaps, exact = measure_parking(model, setup, tell)
    if arguments.json is not None:
        document = {
            "schema_version": SCHEMA_VERSION,
            "machine": machine(device),
            "model": model.model_id,
            "setup": asdict(setup),
            "others": [asdict(gap) for gap in gaps],
            "exactness": asdict(exact),
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    for gap in gaps:
        print(
            f"{gap.way:<11} {gap.returns} returns  p50 {gap.p50_ms:.2f}  p95 {gap.p95_ms:.2f}  p99 {gap.p99_ms:.2f}  "
            f"worst {gap.worst_ms:.2f} ms  p99 ÷ resident {gap.p99_times_resident:.3f}"
        )
    print(
        f"{exact.differing_tokens} of {exact.tokens:,} tokens differ over {exact.parks:,} parks ({exact.differing_again} without "
        f"any); {exact.differing_steps} of {exact.steps:,} steps had other chunks; {exact.differing_bytes} bytes of KV differ "
        f"after a round trip; mirrored when a tool starts "
        f"{exact.mirrored_mean:.3f} (worst {exact.mirrored_worst:.3f}); reclaimable after p50 {exact.reclaimable_p50_ms:.2f}, "
        f"p99 {exact.reclaimable_p99_ms:.2f} ms"
    )


if __name__ == "__main__":
    main()
