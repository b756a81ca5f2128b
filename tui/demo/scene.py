"""Play the scripts on one engine under one policy, and count what happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.records import EngineEvent, EventKind, Snapshot, Totals
from kvtrace.tracer import agent, generation, subscribe, unsubscribe

from .script import AgentScript
from .tools import TOOLS

if TYPE_CHECKING:
    from kvtrace.engine import Engine
    from kvtrace.engine.model import LoadedModel

ANSWER_TOKENS: Final = 24
RESULT_TOKENS: Final = 96  # a tool result with the template's words around it never tokenises to more
AGENTS_IN_POOL: Final = 3
SLOTS: Final = 4
STEP_TOKENS: Final = 256
WATCH_S: Final = 0.05
ANSWER_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class SceneFacts:
    """What one policy did with the scripts.

    ``agents_whole`` is the most agents at one instant whose whole KV existed somewhere; ``parks`` and ``restores``
    count agents' moves, ``out_bytes`` and ``in_bytes`` the copies.
    """

    policy: str
    wall_s: float
    agents_whole: int
    parks: int
    restores: int
    out_bytes: int
    in_bytes: int
    totals: Totals


def engine_config(model: LoadedModel, scripts: tuple[AgentScript, ...], policy: PolicyMode, seed: int) -> EngineConfig:
    """Sizes that make the point: a device pool for about three agents, a host tier for all of them."""
    from kvtrace.engine.model import encode_chat

    prompt = max(len(encode_chat(model.tokenizer, script.messages())) for script in scripts)
    turns = max(len(script.steps) for script in scripts)
    context = prompt + turns * (ANSWER_TOKENS + RESULT_TOKENS) + ANSWER_TOKENS
    blocks = model.geometry.blocks_for(context)
    return EngineConfig(
        device_blocks=AGENTS_IN_POOL * blocks,
        host_blocks=(len(scripts) + 1) * blocks if policy.uses_host else 0,
        slots=SLOTS,
        step_tokens=STEP_TOKENS,
        context_tokens=min(model.context_tokens, context + 1),
        policy=policy,
        seed=seed,
    )


def play(
    model: LoadedModel,
    config: EngineConfig,
    scripts: tuple[AgentScript, ...],
    on_event: Callable[[EngineEvent], None],
    on_turn: Callable[[str], None],
) -> SceneFacts:
    """Run every script in a thread of its own until all are done.

    Args:
        model: the real model.
        config: sizes and policy of this run's engine.
        scripts: what the agents do.
        on_event: told of every park and restore, in the engine's thread.
        on_turn: told the agent's name after each of its turns, in the agent's thread.

    Raises:
        EngineError: a request was refused or failed.
    """
    from kvtrace.engine import Engine

    moves = {EventKind.PARK: 0, EventKind.RESTORE: 0}

    def count(event: EngineEvent) -> None:
        if event.kind in moves:
            moves[event.kind] += 1
        on_event(event)

    started = time.monotonic()
    with Engine.start(model, config) as engine:
        engine.on_event(count)
        subscribe(engine.signal)
        try:
            with ThreadPoolExecutor(len(scripts), thread_name_prefix="agent") as pool:
                work = [pool.submit(_work, engine, model, script, on_turn) for script in scripts]
                whole = _watch(engine, work)
        finally:
            unsubscribe(engine.signal)
        wall_s, end = time.monotonic() - started, engine.state()
    return SceneFacts(
        policy=config.policy.value,
        wall_s=wall_s,
        agents_whole=whole,
        parks=moves[EventKind.PARK],
        restores=moves[EventKind.RESTORE],
        out_bytes=end.link.out_total_bytes,
        in_bytes=end.link.in_total_bytes,
        totals=end.totals,
    )


def _watch(engine: Engine, work: list[Future[None]]) -> int:
    """Wait for the agents; the most of them whose whole KV existed at once. Raises what an agent raised."""
    most, pending = 0, set(work)
    while pending:
        done, pending = wait(pending, timeout=WATCH_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        most = max(most, _agents_whole(engine.state()))
    return most


def _agents_whole(state: Snapshot) -> int:
    return sum(1 for record in state.agents if record.context_tokens and record.kept_tokens >= record.context_tokens)


def _work(engine: Engine, model: LoadedModel, script: AgentScript, on_turn: Callable[[str], None]) -> None:
    """One agent's life: generate, call the tool the script names, append its result, generate again."""
    from kvtrace.engine.model import continue_chat, encode_chat

    with agent(script.name, id=script.name):
        tokens = encode_chat(model.tokenizer, script.messages())
        for number, step in enumerate(script.steps):
            call_id = f"{script.name}/{number}"
            tokens = _answer(engine, model, script.name, tokens, call_id)
            on_turn(script.name)
            result = TOOLS[step.tool](step.argument)
            message = {"role": "user", "content": f"{step.tool} returned:\n{result}"}
            tokens = continue_chat(model.tokenizer, tokens, message)
        _answer(engine, model, script.name, tokens, None)
        on_turn(script.name)


def _answer(engine: Engine, model: LoadedModel, name: str, tokens: list[int], call_id: str | None) -> list[int]:
    """Generate one turn; the conversation's tokens with the answer appended."""
    from kvtrace.engine import Sampling

    with generation(model.model_id, provider="kvtrace") as span:
        stream = engine.submit(name, tokens, Sampling(max_tokens=ANSWER_TOKENS))
        done = stream.result(timeout=ANSWER_TIMEOUT_S)
        usage = done.usage
        span.usage(input_tokens=usage.prompt_tokens, output_tokens=usage.output_tokens)
        span.queued(usage.wait_intervals_unix_ns)
        if call_id is not None:
            span.tool_calls([call_id])
            engine.turn_ended(name, [call_id])
    return [*tokens, *done.tokens]
