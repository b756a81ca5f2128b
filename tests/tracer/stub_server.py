"""A model server that asks for one tool and then answers, for agents that talk to it over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GENERATION_S = 0.05


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(GENERATION_S)
        answer = json.dumps(_completion(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        pass


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    answered = any(message["role"] == "tool" for message in body["messages"])
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"query": "secret words"}'},
    }
    message: dict[str, Any] = {"role": "assistant", "content": "secret words" if answered else None}
    if not answered:
        message["tool_calls"] = [call]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if answered else "tool_calls"}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    return {
        "id": "completion",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }


@contextmanager
def model_server() -> Iterator[str]:
    """Serve on a free port of this machine and yield the base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
