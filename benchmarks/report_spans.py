"""Synthetic spans of many agents at once, as OTLP JSON lines of about 540 bytes a span, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heapreplace
from pathlib import Path
from random import Random
from typing import Final

_START_NS: Final = 1_790_000_000_000_000_000
_TOOLS: Final = ("bash", "read_file", "edit", "grep", "web_fetch", "run_tests")
_HEAD: Final = '{"resourceSpans":[{"resource":{},"scopeSpans":[{"spans":[{'
_TAIL: Final = "}]}]}]}\n"
_LINES_A_WRITE: Final = 4096


def write_spans(path: Path, spans: int, agents: int, seed: int = 0) -> int:
    """Write ``spans`` spans of ``agents`` agents that work at the same time, a line each; return the bytes written."""
    lines: list[str] = []
    with path.open("w", encoding="ascii") as file:
        for line in _lines(spans, agents, Random(seed)):
            lines.append(line)
            if len(lines) == _LINES_A_WRITE:
                file.write("".join(lines))
                lines.clear()
        file.write("".join(lines))
    return path.stat().st_size


def _lines(spans: int, agents: int, random: Random) -> Iterator[str]:
    """Spans in the order in which they end, agents interleaved; each agent's run is written last."""
    ready = [(_START_NS + random.randrange(10**9), number) for number in range(agents)]
    begun = {number: at_ns for at_ns, number in ready}
    heapify(ready)
    for span in range(spans - agents):
        at_ns, number = ready[0]
        # Model calls and tool calls alternate; every eighth tool call runs beside the next one.
        turn = random.random()
        if turn < 0.5:
            end_ns = at_ns + int(random.expovariate(1 / 2e9))
            yield _model(span, number, at_ns, end_ns)
        else:
            end_ns = at_ns + int(random.lognormvariate(19, 2.5))
            yield _tool(span, number, at_ns, end_ns, _TOOLS[int(turn * 12) % 6])
        next_ns = at_ns + 1000 if turn > 0.93 else end_ns + 5_000_000
        heapreplace(ready, (next_ns, number))
    ended = {number: at_ns for at_ns, number in ready}
    for number in range(min(agents, spans)):
        yield _run(spans + number, number, begun[number], ended[number])


def _model(span: int, agent: int, start_ns: int, end_ns: int) -> str:
    return (
        f'{_HEAD}"traceId":"{agent + 1:032x}","spanId":"{span + 1:016x}","parentSpanId":"{agent + 1 << 40:016x}",'
        f'"name":"chat qwen3-8b","kind":3,"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}","attributes":['
        '{"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},'
        f'{{"key":"gen_ai.usage.input_tokens","value":{{"intValue":"{span % 30_000}"}}}},'
        f'{{"key":"kvtrace.agent.id","value":{{"stringValue":"agent-{agent:06d}"}}}}]{_TAIL}'
    )


def _tool(span: int, agent: int, start_ns: int, end_ns: int, tool: str) -> str:
    return (
        f'{_HEAD}"traceId":"{agent + 1:032x}","spanId":"{span + 1:016x}","parentSpanId":"{agent + 1 << 40:016x}",'
        f'"name":"execute_tool {tool}","kind":1,"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}",'
        '"attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"execute_tool"}},'
        f'{{"key":"gen_ai.tool.name","value":{{"stringValue":"{tool}"}}}},'
        f'{{"key":"gen_ai.tool.call.id","value":{{"stringValue":"call_{span:08x}"}}}},'
        f'{{"key":"kvtrace.agent.id","value":{{"stringValue":"agent-{agent:06d}"}}}}]{_TAIL}'
    )


def _run(span: int, agent: int, start_ns: int, end_ns: int) -> str:
    return (
        f'{_HEAD}"traceId":"{agent + 1:032x}","spanId":"{agent + 1 << 40:016x}","parentSpanId":"",'
        f'"name":"invoke_agent worker","kind":1,"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}",'
        '"attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"invoke_agent"}},'
        '{"key":"gen_ai.agent.name","value":{"stringValue":"worker"}},'
        f'{{"key":"kvtrace.agent.id","value":{{"stringValue":"agent-{agent:06d}"}}}}]{_TAIL}'
    )
