#!/bin/sh
# vLLM, cut to the pool that kvtrace gets, for `kvtrace bench agents`. Written for 0.25.1.
#   benchmarks/agents/serve_vllm.sh plain|offload|offload1|simple [PORT]
#     plain     lost KV is computed again
#     offload   --kv-offloading-size: OffloadingConnector on this version's runner, 64 KiB copies
#     offload1  the same on the older runner, whose blocks are contiguous over the layers
#     simple    SimpleCPUOffloadConnector: the fastest of them at many agents
# VLLM_MODEL: a folder or hub id with Qwen3-8B's configuration and a tokenizer (weights are not read). VLLM_SITE: a folder
# to import vLLM from, if it is not installed. HOST_GIB: size of the host tier, 48 by default.
set -eu
mode=${1:?give plain, offload, offload1 or simple}
port=${2:-8101}
host_gib=${HOST_GIB:-48}
case $mode in
  plain) set -- ;;
  offload) set -- --kv-offloading-size "$host_gib" ;;
  offload1) set -- --kv-offloading-size "$host_gib"; export VLLM_USE_V2_MODEL_RUNNER=0 ;;
  simple) set -- --kv-offloading-size "$host_gib"; export VLLM_USE_SIMPLE_KV_OFFLOAD=1 ;;
  *) echo "no mode $mode: give plain, offload, offload1 or simple" >&2; exit 2 ;;
esac
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
if [ -n "${VLLM_SITE:-}" ]; then export PYTHONPATH="$VLLM_SITE"; fi
# 3,438 blocks of 16 are 55,008 tokens; the memory share only has to be large enough for them and the weights.
exec python3 -m vllm.entrypoints.openai.api_server --model "${VLLM_MODEL:-Qwen/Qwen3-8B}" --host 127.0.0.1 --port "$port" \
  --load-format dummy --dtype bfloat16 --max-model-len 40960 --block-size 16 --num-gpu-blocks-override 3438 \
  --enable-prefix-caching --enable-chunked-prefill --enable-prompt-tokens-details --max-num-batched-tokens 8192 \
  --max-num-seqs 64 --gpu-memory-utilization "${GPU_SHARE:-0.4}" --attention-backend FLASH_ATTN \
  --disable-uvicorn-access-log "$@"
