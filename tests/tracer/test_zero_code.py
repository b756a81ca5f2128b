"""Programs with no line of kvtrace in them, under ``kvtrace run``."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvtrace.tracer.autostart import missing
from kvtrace.tracer.testing import Record, read_records
from tests.tracer.stub_server import model_server

INSTRUMENTED = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ""}
ONLY_OPENAI = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai_agents"}

Run = Callable[..., "subprocess.CompletedProcess[str]"]

OPENAI_AGENT = """
import os, time
from openai import OpenAI
client = OpenAI(base_url=os.environ["MODEL_SERVER"], api_key="x")
messages = [{"role": "user", "content": "secret words"}]
for _ in range(2):
    answer = client.chat.completions.create(model="m", messages=messages).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    for call in answer.tool_calls or []:
        time.sleep(0.2)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "secret words"})
"""
AGENTS_AGENT = """
import asyncio, os, time
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI

@function_tool
def search(query: str) -> str:
    time.sleep(0.2)
    return "secret words"

async def main():
    client = AsyncOpenAI(base_url=os.environ["MODEL_SERVER"], api_key="x")
    model = OpenAIChatCompletionsModel(model="m", openai_client=client)
    agent = Agent(name="planner", instructions="secret words", tools=[search], model=model)
    print((await Runner.run(agent, "secret words")).final_output)

asyncio.run(main())
"""


@pytest.fixture
def environment(child_environment: dict[str, str]) -> dict[str, str]:
    # Loading every library that is installed here takes seconds; the tests that are about one ask for it. openai-agents
    # has telemetry of its own, which is to stay where it is.
    return child_environment | {"OPENAI_API_KEY": "", "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(*arguments: str, options: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvtrace.tui", "run", *options, "--", *arguments],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def model() -> Iterator[str]:
    with model_server() as url:
        yield url


def needs(*modules: str) -> pytest.MarkDecorator:
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"not installed: {', '.join(lacking)} (the dev extra has them)")


def ended(tmp_path: Path, operation: str) -> list[Record]:
    return [
        record
        for record in read_records(tmp_path)
        if record.end_unix_ns and record.attributes.get("gen_ai.operation.name") == operation
    ]


def seconds(record: Record) -> float:
    assert record.end_unix_ns is not None
    return (record.end_unix_ns - record.start_unix_ns) / 1e9


@needs("openai", "opentelemetry.instrumentation")
def test_openai_client_shows_its_model_and_tool_time(run: Run, model: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", OPENAI_AGENT, options=("--agent", "planner"), MODEL_SERVER=model, **ONLY_OPENAI)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    chats, (tool,) = ended(tmp_path, "chat"), ended(tmp_path, "execute_tool")
    assert [chat.attributes["gen_ai.response.finish_reasons"] for chat in chats] == [["tool_calls"], ["stop"]]
    assert all(chat.attributes["gen_ai.usage.input_tokens"] == 5 for chat in chats)
    assert all(seconds(chat) >= 0.05 for chat in chats)
    assert 0.2 <= seconds(tool) < 5
    assert tool.attributes["kvtrace.inferred"] is True
    assert (tool.start_unix_ns, tool.end_unix_ns) == (chats[0].end_unix_ns, chats[1].start_unix_ns)
    assert len({record.attributes["kvtrace.agent.id"] for record in read_records(tmp_path)}) == 1
    assert {record.attributes["gen_ai.agent.name"] for record in read_records(tmp_path)} == {"planner"}
    assert "secret" not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))


@needs("agents", "opentelemetry.instrumentation")
def test_openai_agents_show_every_tool_of_their_own(run: Run, model: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", AGENTS_AGENT, MODEL_SERVER=model, **INSTRUMENTED)
    assert (done.returncode, done.stdout) == (0, "secret words\n"), done.stderr
    (tool,), (agent,), chats = ended(tmp_path, "execute_tool"), ended(tmp_path, "invoke_agent"), ended(tmp_path, "chat")
    assert tool.attributes["gen_ai.tool.name"] == "search"
    assert "kvtrace.inferred" not in tool.attributes
    assert 0.2 <= seconds(tool) < 5
    owners = {record.attributes["kvtrace.agent.id"] for record in [tool, agent, *chats]}
    assert owners == {agent.span_id}
    assert len([record for record in read_records(tmp_path) if record.name == tool.name]) == 2
    assert "secret" not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))


TWO_AGENTS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("library")
for name in ("one", "two"):
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    with tracer.start_as_current_span(f"invoke_agent {name}", attributes=attributes):
        tracer.start_span("chat m", attributes={"gen_ai.operation.name": "chat"}).end()
"""


def test_given_id_is_the_agent_of_all(run: Run, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", TWO_AGENTS, options=("--agent-id", "w1"))
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path)
    assert len(records) == 8
    assert {record.attributes["kvtrace.agent.id"] for record in records} == {"w1"}


def test_agents_without_a_given_id_have_one_each(run: Run, tmp_path: Path) -> None:
    assert run(sys.executable, "-c", TWO_AGENTS).returncode == 0
    agents = ended(tmp_path, "invoke_agent")
    assert {record.attributes["kvtrace.agent.id"] for record in agents} == {record.span_id for record in agents}
    assert len(agents) == 2


OWN_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
early = trace.get_tracer("library")
exporter, mine = InMemorySpanExporter(), TracerProvider()
mine.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(mine)
assert trace.get_tracer_provider() is mine
early.start_span("early", attributes={"gen_ai.operation.name": "chat"}).end()
trace.get_tracer("late").start_span("late", attributes={"gen_ai.operation.name": "chat"}).end()
print([span.name for span in exporter.get_finished_spans()])
"""


@pytest.mark.parametrize("with_package", [True, False])
def test_provider_of_the_program_stays_in_charge(run: Run, tmp_path: Path, with_package: bool) -> None:
    hidden = {} if with_package else {"PYTHONPATH": str(_without_instrumentation(tmp_path))}
    done = run(sys.executable, "-c", OWN_PROVIDER, **hidden)
    assert (done.returncode, done.stdout) == (0, "['early', 'late']\n"), done.stderr
    assert [record.name for record in read_records(tmp_path)] == ["early", "early", "late", "late"]


def _without_instrumentation(folder: Path) -> Path:
    """Return a path entry that makes OpenTelemetry's instrumentation package look as if it were not installed."""
    package = folder / "path" / "opentelemetry" / "instrumentation"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('hidden by a test')\n")
    return folder / "path"


def test_hidden_sitecustomize_still_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text("import sys\nsys.mine = __name__\n")
    done = run(sys.executable, "-c", "import sys; print(sys.mine)", PYTHONPATH=str(tmp_path / "path"))
    assert done.stdout == "sitecustomize\n", done.stderr


def test_traced_tools_of_the_program_work_as_always(run: Run, tmp_path: Path) -> None:
    source = "from kvtrace.tracer import agent, traced_tool\nwith agent('a', id='a'): traced_tool(lambda: None)()"
    assert run(sys.executable, "-c", source).returncode == 0
    records = read_records(tmp_path)
    assert len(records) == 4
    assert {record.attributes["kvtrace.agent.id"] for record in records} == {"a"}


def test_child_processes_join_the_run(run: Run, tmp_path: Path) -> None:
    inner = "from kvtrace.tracer import traced_tool; traced_tool(lambda: None)()"
    source = f"import subprocess, sys\n{inner}\nsubprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    assert run(sys.executable, "-c", source).returncode == 0
    records = read_records(tmp_path)
    assert len({record.resource["process.pid"] for record in records}) == 2
    assert len({record.resource["kvtrace.run.id"] for record in records}) == 1
    assert len({record.attributes["kvtrace.agent.id"] for record in records}) == 2


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exit 0", 0)]
)
def test_exit_code_is_the_childs(run: Run, script: str, code: int) -> None:
    done = run("sh", "-c", f"echo out; echo err >&2; {script}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\n", "err\n")


def test_commands_that_cannot_run_are_named(run: Run, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    missing_one, forbidden = run("no-such-command"), run(str(plain))
    assert (missing_one.returncode, forbidden.returncode) == (127, 126)
    assert "no-such-command" in missing_one.stderr
    assert run().returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_child(environment: dict[str, str], number: signal.Signals, tmp_path: Path) -> None:
    source = (
        "import os, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(9))\n"
        "os.write(1, b'up')\n"
        "time.sleep(30)\n"
    )
    command = [sys.executable, "-m", "kvtrace.tui", "run", "--", sys.executable, "-c", source]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        child.send_signal(number)
        assert child.wait(30) == 9


def test_keys_of_a_terminal_reach_the_child_once(environment: dict[str, str]) -> None:
    source = (
        "import os, signal, time\n"
        "count = 0\n"
        "def note(*_):\n"
        "    global count\n"
        "    count += 1\n"
        "signal.signal(signal.SIGINT, note)\n"
        "print('up', flush=True)\n"
        "end = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "print(f'count={count}', flush=True)\n"
    )
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "kvtrace.tui", "run", "--", sys.executable, "-c", source]
    opener = f"import os; os.setsid(); os.close(os.open({os.ttyname(terminal)!r}, os.O_RDWR)); os.execv({command[0]!r}, {command!r})"
    with subprocess.Popen(
        [sys.executable, "-c", opener], env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    ) as child:
        os.close(terminal)
        text = _read_until(controller, b"up")
        os.write(controller, b"\x03")
        text += _read_until(controller, b"count=1")
        assert child.wait(30) == 0
    os.close(controller)
    assert b"count=1" in text


def _read_until(fd: int, wanted: bytes) -> bytes:
    text, deadline = b"", time.monotonic() + 30
    while wanted not in text:
        assert time.monotonic() < deadline, text
        try:
            text += os.read(fd, 1000)
        except OSError:
            break
    return text


def test_what_is_not_instrumented_is_named_with_its_cure() -> None:
    assert missing({"openai"}.__contains__, frozenset()) == [("openai", "opentelemetry-instrumentation-genai-openai")]
    assert missing({"openai"}.__contains__, frozenset({"openai"})) == []
    assert missing({"openai", "agents"}.__contains__, frozenset({"openai"})) == [
        ("agents", "opentelemetry-instrumentation-genai-openai-agents")
    ]


def test_python_without_kvtrace_is_told_in_one_line(run: Run) -> None:
    source = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'pass'])"
    folder = Path(__file__).parents[2] / "tracer" / "zero_code"
    code = f"import runpy; runpy.run_path({str(folder / 'sitecustomize.py')!r})"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", f"import os; os.environ['KVTRACE_AUTO'] = '1'\n{code}\n{source}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "pip install kvtrace" in done.stderr
