"""What the HTTP front end of ``kvtrace serve`` costs: ``python benchmarks/frontend.py [--json FILE]``.

A real server over a tiny random model, in this process, asked by a client in another one:

* from the moment the client begins to send a prompt of 7,000 token ids to the moment the engine's core is given it;
* processor time of the event loop's thread for each streamed token, with one stream and with eight.

The model is tiny so that the engine is no part of it; the tokenizer is a real one of 49,152 words.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from machine import describe

PROMPT_TOKENS = 7000
CONTEXT = 8192

CLIENT = """
import http.client, json, sys, threading, time
host, port, job = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)

def ask(body, sent):
    connection = http.client.HTTPConnection(host, port)
    data = json.dumps(body).encode()
    for _ in range(job["times"]):
        sent.append(time.monotonic_ns())
        connection.request("POST", job["path"], data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

sent = [[] for _ in job["bodies"]]
threads = [threading.Thread(target=ask, args=pair) for pair in zip(job["bodies"], sent)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
json.dump(sent, sys.stdout)
"""


def make_model(folder: Path) -> None:
    """Write a random Llama of two thin layers with the embedded model's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
    from transformers.utils.logging import disable_progress_bar

    from kvtrace.engine.model.cache import converted
    from kvtrace.engine.model.embedded import embedded_gguf

    tokenizer = AutoTokenizer.from_pretrained(converted(embedded_gguf(), torch.float32, lambda _: None))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
    )
    torch.manual_seed(0)
    disable_progress_bar()
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Served:
    """A running server whose core notes when it is given a request."""

    def __init__(self, folder: Path) -> None:
        from kvtrace.engine.process import own_process
        from kvtrace.engine.server.launch import Launched
        from kvtrace.engine.server.settings import ServerSettings

        ready = threading.Event()
        settings = ServerSettings(
            source=str(folder),
            port=0,
            device="cpu",
            kv_vram_bytes=64 << 20,
            kv_host_bytes=64 << 20,
            context_tokens=CONTEXT,
        )
        self._launched = Launched(settings, on_ready=lambda _: ready.set())
        self._thread = threading.Thread(target=self._launched.run)
        self._thread.start()
        assert ready.wait(120)
        own_process()  # as the command does
        self.given: list[int] = []
        core = self._launched.service.engine._core
        submit = core.submit

        def noted(*arguments: Any) -> Any:
            self.given.append(time.monotonic_ns())
            return submit(*arguments)

        core.submit = noted  # type: ignore[assignment]
        self.model = self._launched.service.model.model_id

    def ask(self, path: str, bodies: list[dict[str, Any]], times: int) -> list[list[int]]:
        """Have a client process send each body ``times`` times; when it began to, monotonic ns."""
        host, port = self._launched.url.removeprefix("http://").split(":")
        job = json.dumps({"path": path, "bodies": bodies, "times": times})
        command = [sys.executable, "-c", CLIENT, host, port]
        done = subprocess.run(command, input=job, capture_output=True, text=True, check=True)
        sent: list[list[int]] = json.loads(done.stdout)
        return sent

    def loop_cpu_ns(self) -> int:
        """Processor time that the event loop's thread has used."""
        answer: Future[int] = Future()
        loop = self._launched.service.waker.loop
        loop.call_soon_threadsafe(lambda: answer.set_result(time.thread_time_ns()))
        return answer.result(60)

    def close(self) -> None:
        """Stop it."""
        self._launched.stop()
        self._thread.join()


def to_core_ms(server: Served, times: int) -> tuple[list[float], float]:
    """Milliseconds from the client's first byte to the core, for each of ``times`` requests of 7,000 ids.

    Also the event loop's processor time for one of them from its arrival to the end of its answer, in ms: on a busy
    machine that is the figure to look at.
    """
    source = random.Random(0)
    prompt = [source.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)]
    body = {"model": server.model, "prompt": prompt, "max_tokens": 1, "prompt_cache_key": "a"}
    server.ask("/v1/completions", [body], 2)  # its KV is cached from now on, and everything is imported
    server.given.clear()
    before = server.loop_cpu_ns()
    (sent,) = server.ask("/v1/completions", [body], times)
    cpu_ms = (server.loop_cpu_ns() - before) / 1e6 / times
    return sorted((given - began) / 1e6 for began, given in zip(sent, server.given, strict=True)), cpu_ms


def cpu_per_token_ms(server: Served, streams: int, tokens: int) -> float:
    """Milliseconds of the event loop's thread for one streamed token."""
    bodies = [
        {
            "model": server.model,
            "messages": [{"role": "user", "content": f"Stream {number}"}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "prompt_cache_key": f"stream {number}",
        }
        for number in range(streams)
    ]
    server.ask("/v1/chat/completions", bodies, 1)
    before = server.loop_cpu_ns()
    server.ask("/v1/chat/completions", bodies, 1)
    return (server.loop_cpu_ns() - before) / 1e6 / (streams * tokens)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=60, help="requests of 7,000 ids")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each stream")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        server = Served(Path(folder))
        try:
            reached, request_cpu_ms = to_core_ms(server, options.times)
            per_token = {streams: cpu_per_token_ms(server, streams, options.tokens) for streams in (1, 8)}
        finally:
            server.close()
    figures = {
        "schema_version": 1,
        "machine": describe("fastapi", "uvicorn", "uvloop", "httptools", "pydantic", "msgspec"),
        "prompt_tokens": PROMPT_TOKENS,
        "to_core_ms": {"p50": statistics.median(reached), "p99": reached[int(0.99 * len(reached))], "best": reached[0]},
        "loop_cpu_ms_per_request": request_cpu_ms,
        "loop_cpu_ms_per_token": {str(streams): value for streams, value in per_token.items()},
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
