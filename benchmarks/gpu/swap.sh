#!/usr/bin/env bash
# The link and the swap tier of the GPU at hand, into benchmarks/results/. Usage: benchmarks/gpu/swap.sh NAME   (such as h200)
set -eu
name=${1:?give a name for the results, such as h200}
cd "$(dirname "$0")/../.."
results=benchmarks/results
python3 -m kvtrace.tui bench link --json >"$results/link-$name.json"
python3 -m kvtrace.tui bench swap --json >"$results/swap-$name.json"
python3 -m kvtrace.tui bench swap --way staged --way single --json >"$results/swap-ways-$name.json"
python3 benchmarks/gpu/pinning.py --json >"$results/pinning-$name.json"
