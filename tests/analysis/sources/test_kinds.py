"""A transcript's kind is told by its content, even where it talks about the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis.sources import importer_for

from .support import iso, write_rows

ALL_MARKS = json.dumps(
    ["resourceSpans", "sessionId", "parentUuid", "payload", "session_meta", "timing_events", "round_index"]
)
SAMPLES: dict[str, Any] = {
    "Claude Code transcript": {"parentUuid": None, "sessionId": "s", "type": "user", "message": {"content": ALL_MARKS}},
    "Codex rollout": {
        "timestamp": iso(0),
        "type": "response_item",
        "payload": {"type": "message", "content": ALL_MARKS},
    },
    "Gemini CLI session": {"sessionId": "g", "projectHash": "h", "messages": [{"type": "user", "content": ALL_MARKS}]},
    "Gemini CLI telemetry": {"attributes": {"event.name": "gemini_cli.user_prompt", "prompt": ALL_MARKS}},
    "OpenCode": {"type": "step_start", "sessionID": "s", "part": {"messageID": "m", "text": ALL_MARKS}},
    "OpenHands events": [
        {"id": 0, "timestamp": iso(0), "source": "user", "action": "message", "args": {"content": ALL_MARKS}}
    ],
    "Inspect AI log": {"version": 2, "eval": {"eval_id": "e", "task": "t"}, "samples": [{"input": ALL_MARKS}]},
    "SWE-agent trajectory": {"trajectory": [{"execution_time": 1, "observation": ALL_MARKS, "thought": ""}]},
    "TraceLab rounds": {"session_id": "s", "round_index": 0, "timing_events": [], "tools": [{"input": ALL_MARKS}]},
    "event stream without instants": {"type": "item.completed", "item": {"text": ALL_MARKS}},
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_kind_is_told_by_content(tmp_path: Path, kind: str) -> None:
    importer = importer_for(write_rows(tmp_path / "x", [SAMPLES[kind]]))
    assert importer is not None
    assert importer.kind == kind


@pytest.mark.parametrize(
    "row",
    [
        {"type": "summary", "summary": "x", "leafUuid": "u"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    ],
)
def test_transcripts_of_nothing_but_headers_are_recognised(tmp_path: Path, row: dict[str, Any]) -> None:
    importer = importer_for(write_rows(tmp_path / "x.jsonl", [row]))
    assert importer is not None
    assert importer.kind == "Claude Code transcript"
