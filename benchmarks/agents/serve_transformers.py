"""transformers' own continuous batching behind the completions API that ``kvtrace bench agents`` speaks.

``python benchmarks/agents/serve_transformers.py [--port 8102] [--offload-gib 24]``: Qwen3-8B's geometry with random
weights, a KV pool of 55,000 tokens, streamed completions of token ids. ``transformers serve`` has the same engine but
takes text alone, which would measure tokenizers. Blocks keep the library's default size of 256 tokens; its prefix
sharing is on; its CPU offload moves *running* requests out when they outgrow the pool and knows nothing of agents that
wait. Needs transformers 5.17 or later and aiohttp, no tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from typing import Any, Final

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, Qwen3Config

MODEL: Final = "random"
POOL_TOKENS: Final = 55_000
BLOCK_TOKENS: Final = 256
SIZES: Final[dict[str, dict[str, int]]] = {
    "qwen3-8b": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 32_000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}


class Batcher:
    """Hands requests to the continuous batching and its tokens back to whoever waits for them."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._numbers = itertools.count()

    async def stream(self, prompt: list[int], tokens: int, response: web.StreamResponse) -> int:
        """Send every new token as an event; the count when all are out.

        Raises:
            RuntimeError: the engine failed the request.
        """
        name, outputs = f"bench-{next(self._numbers)}", asyncio.Queue[Any]()
        self._manager.register_result_handler(name, outputs.put_nowait)
        accepted = self._manager.add_request(
            prompt, request_id=name, max_new_tokens=tokens, streaming=True, eos_token_id=-1
        )
        if accepted is None:
            raise RuntimeError("the engine takes no more requests; its log says why")
        sent, ended = 0, False
        try:
            while not ended:
                output = await outputs.get()
                if output.error is not None:
                    raise RuntimeError(output.error)
                ended = output.is_finished()
                if new := output.generated_tokens[sent:]:
                    sent += len(new)
                    await _send(response, {"choices": [{"index": 0, "text": "", "token_ids": new}]})
        finally:
            if not ended:
                self._manager.cancel_request(name)
        return sent


def application(batcher: Batcher) -> web.Application:
    """The routes."""

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        prompt = body["prompt"]
        try:
            count = await batcher.stream(prompt, body["max_tokens"], response)
            usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
            await _send(response, {"choices": [], "usage": usage})
        except RuntimeError as error:
            await _send(response, {"error": {"message": str(error)}})
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=64 << 20)
    app.add_routes(
        [web.get("/health", health), web.get("/v1/models", models), web.post("/v1/completions", completions)]
    )
    return app


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def load(size: str, device: str) -> Any:
    """A Qwen3 of that size with random weights, in bf16 on a GPU."""
    config = Qwen3Config(**SIZES[size], max_position_embeddings=40_960, tie_word_embeddings=False)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="paged|sdpa").eval()


def main() -> None:
    """Load, start, serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8102)
    parser.add_argument("--size", choices=sorted(SIZES), default="qwen3-8b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pool-tokens", type=int, default=POOL_TOKENS)
    parser.add_argument("--step-tokens", type=int, default=2048)
    parser.add_argument("--offload-gib", type=float, default=24.0)
    asked = parser.parse_args()
    began = time.monotonic()
    model = load(asked.size, asked.device)
    setup = ContinuousBatchingConfig(
        block_size=BLOCK_TOKENS,
        num_blocks=asked.pool_tokens // BLOCK_TOKENS,
        max_batch_tokens=asked.step_tokens,
        max_requests_per_batch=64,
        cpu_offload_space=asked.offload_gib,
    )
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=setup,
    )
    manager.warmup()
    manager.start()
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    web.run_app(application(Batcher(manager)), host="127.0.0.1", port=asked.port, print=None)


if __name__ == "__main__":
    main()
