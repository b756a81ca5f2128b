#!/usr/bin/env bash
# The link and the swap tier of the GPU at hand, into benchmarks/results/. Usage: benchmarks/gpu/swap.sh NAME   (such as h200)
set -eu
name=${1:?give a name for the results, such as h200}
cd "$(dirname "$0")/../.."
results=benchmarks/results
python3 -m kvtrace.tui bench link --json >"$results/$name-link.json"
python3 -m kvtrace.tui bench swap --json >"$results/$name-swap.json"
python3 -m kvtrace.tui bench swap --way staged --way single --json >"$results/$name-swap-ways.json"
python3 benchmarks/gpu/pinning.py --json >"$results/$name-pinning.json"
