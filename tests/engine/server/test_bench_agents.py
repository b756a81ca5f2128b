"""``kvtrace bench agents`` in a process of its own against a real server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from .support import Running

SMALL = ("--prompt", "60", "--returns", "2", "--generate", "6", "--new", "10", "--slots", "4")


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtrace.tui", "bench", "agents", *options]
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def document_of(*options: str) -> dict[str, Any]:
    done = bench(*options, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def runs_of(*options: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = document_of(*options)["runs"]
    return runs


def test_seeds_of_the_same_cell_are_summed_up_by_median_and_spread(smollm2_server: Running) -> None:
    document = document_of("--url", smollm2_server.url, "--agents", "2", "--seeds", "1,2", "--tool", "exp:0.1", *SMALL)
    (group,) = document["groups"]
    rates = sorted(run["turns_per_s"] for run in document["runs"])
    assert group["seeds"] == [1, 2]
    assert (group["turns_per_s"]["low"], group["turns_per_s"]["high"]) == (rates[0], rates[1])
    assert group["measured_multiple"] == pytest.approx(1.0)
    assert 0 < group["client_cpu_share"]["median"] < 1


def test_agents_come_back_to_what_they_left(smollm2_server: Running) -> None:
    few, more = runs_of("--url", smollm2_server.url, "--agents", "1,3", "--tool", "fixed:0.2", *SMALL)
    assert (few["turns"], more["turns"]) == (3, 9)
    assert few["failed"] == more["failed"] == 0
    # An agent's prompt and what it adds are computed once; a whole block at most is computed again at a return.
    assert more["reprefilled_tokens"] == 0
    assert more["computed_tokens"] < more["prompt_tokens"] / 2
    assert more["generated_tokens"] == 9 * 6
    assert more["token_ids_returned"] is True
    assert 0 < more["b"] < 1
    assert more["turns_per_s_of_ideal"] > 0


def test_tools_reach_the_server_as_spans(smollm2_server: Running) -> None:
    (run,) = runs_of("--url", smollm2_server.url, "--agents", "2", "--tool", "fixed:0.4", *SMALL)
    # Only agents that the server knows to wait have idle KV.
    assert run["moved"]["idle_byte_s"] > 0


def test_finished_agents_are_replaced_in_a_steady_run(smollm2_server: Running) -> None:
    options = ("--agents", "2", "--tool", "fixed:0.01", "--returns", "0", "--prompt", "8", "--generate", "2")
    (run,) = runs_of("--url", smollm2_server.url, "--steady", "4", *options)
    assert run["agents"] > 2
    assert run["turns"] > 0
    # Held against the same agents, replaced as well, where KV moves for free.
    assert run["ideal_turns_per_s"] > 0


def test_sessions_of_a_file_are_replayed(smollm2_server: Running, tmp_path: Path) -> None:
    path = tmp_path / "sessions.csv"
    path.write_text(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "a,0,0,0,30,4,100\na,0,1,34,6,4,50\nb,50,0,0,20,3,0\n",
        encoding="utf-8",
    )
    (run,) = runs_of("--url", smollm2_server.url, "--agents", "2", "--trace", str(path))
    assert (run["agents"], run["turns"], run["generated_tokens"]) == (2, 3, 11)


def test_table_and_plot_are_for_people(smollm2_server: Running, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs kvtrace[plot]")
    plot = tmp_path / "agents.svg"
    done = bench("--url", smollm2_server.url, "--agents", "1,2", "--tool", "fixed:0", "--plot", str(plot), *SMALL)
    assert done.returncode == 0, done.stderr
    assert "turns/s" in done.stdout
    assert "2 agents" in done.stdout
    assert plot.read_text(encoding="utf-8").count("<svg") == 1


def test_prompts_that_cannot_fit_fail_with_the_servers_words(smollm2_server: Running) -> None:
    done = bench("--url", smollm2_server.url, "--agents", "1", "--prompt", "100000")
    assert done.returncode == 1
    assert "context" in done.stderr
    assert '{"error"' not in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_of_several_calls_and_seeds_add_up_in_one_file(smollm2_server: Running, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    options = ("--url", smollm2_server.url, "--tool", "fixed:0.05", "--append", str(path), "--machine", "a box", *SMALL)
    one = bench(*options, "--agents", "1", "--seeds", "1,2")
    again = bench(*options, "--agents", "1,6", "--seeds", "2")
    assert (one.returncode, again.returncode) == (0, 0), one.stderr + again.stderr
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    cells = [(run["cell"]["engine"], run["cell"]["agents"], run["cell"]["seed"]) for run in runs]
    assert cells == [("kvtrace", 1, 1), ("kvtrace", 1, 2), ("kvtrace", 6, 2)]
    assert runs[0]["machine"]["device"] == "a box"
    assert runs[0]["server"]["policy"] == runs[0]["cell"]["policy"]
    # The single agents are those that never have to leave, so six can be held against them.
    assert "twice the resident first token" in again.stdout
    assert "predicted with queueing" in again.stdout


def test_another_call_with_the_same_seed_finds_no_prompt_of_the_first_one_cached(smollm2_server: Running) -> None:
    for _ in range(2):
        (run,) = runs_of("--url", smollm2_server.url, "--agents", "1", "--tool", "fixed:0", *SMALL)
        assert run["computed_tokens"] >= 60


def test_file_of_something_else_is_refused_before_anything_is_measured(smollm2_server: Running, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]", encoding="utf-8")
    done = bench("--url", smollm2_server.url, "--append", str(path))
    assert done.returncode == 1
    assert "holds no runs" in done.stderr
    assert path.read_text(encoding="utf-8") == "[]"


def test_no_server_is_one_sentence() -> None:
    done = bench("--url", "http://127.0.0.1:9", "--agents", "1")
    assert done.returncode == 3
    assert "kvtrace serve" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tool", "exp:-1"),
        ("--tool", "gamma:2"),
        ("--tool", "real:x"),
        ("--seeds", "1,x"),
        ("--agents", "0"),
        ("--agents", "8,x"),
        ("--agents", "8²"),
        ("--agents", "9" * 5000),
        ("--tool", "exp:inf"),
        ("--tool", "fixed:nan"),
        ("--steady", "nan"),
        ("--steady", "inf"),
        ("--resident-ttft", "inf"),
    ],
)
def test_senseless_options_are_usage_errors(option: str, value: str, smollm2_server: Running) -> None:
    done = bench("--url", smollm2_server.url, option, value)
    assert done.returncode == 2
    assert value in done.stderr


LIMITED = """
import asyncio, os, sys
from aiohttp import web

left, then, event = int(sys.argv[2]), sys.argv[3], b'data: {"choices": [{"token_ids": [7]}]}\\n\\n'

async def models(request):
    return web.json_response({"data": [{"id": "m"}]})

async def complete(request):
    global left
    await request.read()
    left -= 1
    if left < 0:
        print(then, flush=True)
        await asyncio.sleep(3600) if then == "hang" else os._exit(1)
    return web.Response(body=event)

app = web.Application()
app.router.add_get("/v1/models", models)
app.router.add_post("/v1/completions", complete)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda text: print("ready", flush=True))
"""


@contextmanager
def limited(answered: int, then: str) -> Iterator[tuple[str, IO[str]]]:
    """A server that answers so many requests, writes ``then``, and hangs or dies."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", LIMITED, str(port), str(answered), then]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        try:
            yield f"http://127.0.0.1:{port}", server.stdout
        finally:
            server.kill()


def test_server_that_goes_away_leaves_what_was_measured_before(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with limited(3, "die") as (url, _):
        done = bench(
            "--url",
            url,
            "--agents",
            "1",
            "--seeds",
            "1,2,3",
            "--tool",
            "fixed:0",
            "--returns",
            "1",
            "--append",
            str(path),
        )
    assert done.returncode == 3
    assert "went away; the run with 1 agent and seed 2 does not count" in done.stderr
    assert done.stderr.count("the server does not tell its card's name") == 1
    assert "turns/s" in done.stdout
    assert [run["cell"]["seed"] for run in json.loads(path.read_text(encoding="utf-8"))["runs"]] == [1]


def test_interrupted_bench_shows_what_was_measured_before() -> None:
    with limited(2, "hang") as (url, words):
        options = ["--url", url, "--agents", "1", "--seeds", "1,2", "--tool", "fixed:0", "--returns", "1", "--json"]
        command = [sys.executable, "-m", "kvtrace.tui", "bench", "agents", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert words.readline() == "hang\n"
            process.send_signal(signal.SIGINT)
            try:
                out, said = process.communicate(timeout=30)
            finally:
                process.kill()
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert [run["cell"]["seed"] for run in json.loads(out)["runs"]] == [1]
