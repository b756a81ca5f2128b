from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvtrace.tracer.settings import default_directory, make_run_id, read_settings
from kvtrace.tracer.testing import read_records

if TYPE_CHECKING:
    from tests.tracer.conftest import Program


def test_arguments_win_over_the_environment(tmp_path: Path) -> None:
    environment = {
        "KVTRACE_DIR": "/elsewhere",
        "KVTRACE_RUN": "theirs",
        "OTEL_SERVICE_NAME": "theirs",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://theirs",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
    }
    theirs = read_settings(environment, new_run_id="new")
    assert (theirs.directory, theirs.run_id, theirs.service_name) == (Path("/elsewhere"), "theirs", "theirs")
    assert (theirs.endpoint, theirs.capture_content) == ("http://theirs", True)
    ours = read_settings(
        environment,
        new_run_id="new",
        directory=tmp_path,
        run_id="ours",
        service_name="ours",
        endpoint="http://ours",
        capture_content=False,
    )
    assert (ours.directory, ours.run_id, ours.service_name) == (tmp_path, "ours", "ours")
    assert (ours.endpoint, ours.capture_content) == ("http://ours", False)
    assert ours.run_directory == tmp_path / "runs" / "ours"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", None),
        ("NO_CONTENT", False),
        ("EVENT_ONLY", False),
        ("span_only", True),
        ("SPAN_AND_EVENT", True),
        ("true", True),
        ("false", False),
    ],
)
def test_capture_switch_is_read_as_the_conventions_say(value: str, expected: bool | None) -> None:
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert read_settings({name: value}, new_run_id="new").capture_content is expected


def test_service_name_is_found_among_resource_attributes() -> None:
    environment = {"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=my%20agent"}
    assert read_settings(environment, new_run_id="new").service_name == "my agent"
    assert read_settings({}, new_run_id="new").service_name == "unknown_service"


@pytest.mark.parametrize("bad", ["", "../up", "a/b", ".", "x" * 200, "ä"])
def test_run_that_cannot_name_a_folder_is_refused(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="cannot name a folder"):
        read_settings({}, new_run_id="new", run_id=bad)
    assert read_settings({"KVTRACE_RUN": bad}, new_run_id="new").run_id == "new"
    assert "KVTRACE_RUN" in caplog.text


def test_run_ids_sort_by_time() -> None:
    first = make_run_id(1_700_000_000_123_000_000, 9, "ffff")
    assert first == "20231114T221320.123Z-9-ffff"
    assert make_run_id(1_700_000_001_000_000_000, 1, "0000") > first
    assert read_settings({}, new_run_id="new", run_id=first).run_id == first


def test_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_directory({}) == tmp_path / "kvtrace"
    assert default_directory({"KVTRACE_DIR": "~/x"}) == Path.home() / "x"


@pytest.mark.parametrize("value", ["1", "true", "TRUE"])
def test_disabled_program_writes_nothing(program: Program, tmp_path: Path, value: str) -> None:
    done = program(
        """
import os
from kvtrace.tracer import agent, traced_tool
with agent("a"):
    print(traced_tool(lambda: 3)())
""",
        KVTRACE_DISABLED=value,
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_first_span_configures_from_the_environment(program: Program, tmp_path: Path) -> None:
    done = program(
        """
import os
from kvtrace.tracer import traced_tool
assert "KVTRACE_RUN" not in os.environ
traced_tool(lambda: None)()
print(os.environ["KVTRACE_RUN"])
""",
        OTEL_SERVICE_NAME="mine",
    )
    assert done.returncode == 0, done.stderr
    (start, _) = read_records(tmp_path)
    resource = start.resource
    assert resource["kvtrace.run.id"] == done.stdout.strip()
    assert resource["service.name"] == "mine"
    (file,) = tmp_path.rglob("*.jsonl")
    assert file.parent == tmp_path / "runs" / done.stdout.strip()
    assert re.fullmatch(rf"{resource['process.pid']}-{resource['kvtrace.process.start_unix_ns']}\.jsonl", file.name)


def test_process_start_is_when_the_process_started(program: Program, tmp_path: Path) -> None:
    done = program("""
import time
from kvtrace.tracer.runtime import process_start_unix_ns
import os
time.sleep(0.3)
age = time.time_ns() - process_start_unix_ns(os.getpid())
assert 0.3e9 < age < 60e9, age
assert process_start_unix_ns(2**22 + 1) <= time.time_ns()
""")
    assert done.returncode == 0, done.stderr


def test_configure_again_starts_another_file(program: Program, tmp_path: Path) -> None:
    done = program("""
import os
from kvtrace.tracer import configure, traced_tool
tool = traced_tool(lambda: None)
first = configure(run_id="first")
tool()
second = configure(run_id="second", service_name="s")
tool()
assert os.environ["KVTRACE_RUN"] == "second"
assert os.environ["KVTRACE_DIR"] == str(second.directory)
""")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["first", "second"]
    assert len(read_records(tmp_path / "runs" / "first")) == len(read_records(tmp_path / "runs" / "second")) == 2
