"""Play the scripts on one engine under one policy, and count what happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.prefix import common_prefix
from kvtrace.engine.records import AgentRecord, AgentState, EngineEvent, EventKind, Totals
from kvtrace.tracer import agent, generation, subscribe, unsubscribe

from .script import AgentScript
from .tools import TOOLS, stop_tools

if TYPE_CHECKING:
    from kvtrace.engine import Engine
    from kvtrace.engine.model import LoadedModel

ANSWER_TOKENS: Final = 12
RESULT_TOKENS: Final = 96  # a tool result with the template's words around it never tokenises to more …
TYPICAL_RESULT_TOKENS: Final = 40  # … and mostly to about this
AGENTS_IN_POOL: Final = 3
SLOTS: Final = 4
STEP_TOKENS: Final = 256
WATCH_S: Final = 0.05
LEAVE_S: Final = 0.02
ANSWER_TIMEOUT_S: Final = 600.0

TurnListener = Callable[[str, list[int]], None]


@dataclass(frozen=True, slots=True)
class SceneFacts:
    """What one policy did with the scripts.

    ``agents_whole`` and ``agents_whole_mean`` are how many unfinished agents had their whole KV in some tier at once,
    at most and over time; ``parks`` and ``restores`` count agents' moves, ``out_bytes`` and ``in_bytes`` the copies.
    """

    policy: str
    wall_s: float
    agents_whole: int
    agents_whole_mean: float
    parks: int
    restores: int
    out_bytes: int
    in_bytes: int
    totals: Totals

    @property
    def reprefill_s(self) -> float:
        """Seconds of compute that prefilling again took, at this run's own prefill rate."""
        prefilled = self.totals.prefilled_tokens
        return self.totals.prefill_s * self.totals.reprefilled_tokens / prefilled if prefilled else 0.0


def engine_config(model: LoadedModel, scripts: tuple[AgentScript, ...], policy: PolicyMode, seed: int) -> EngineConfig:
    """Sizes that make the point: a device pool for about three agents, a host tier for all of them."""
    from kvtrace.engine.model import encode_chat

    prompts = [encode_chat(model.tokenizer, script.messages()) for script in scripts]
    prompt = max(map(len, prompts))
    shared = min(common_prefix(prompts[0], other) for other in prompts[1:]) if len(prompts) > 1 else 0
    turns = max(len(script.steps) for script in scripts)
    context = prompt + turns * (ANSWER_TOKENS + RESULT_TOKENS) + ANSWER_TOKENS
    typical = prompt + turns * (ANSWER_TOKENS + TYPICAL_RESULT_TOKENS) + ANSWER_TOKENS
    blocks = model.geometry.blocks_for
    return EngineConfig(
        # The system prompt that all share is there once.
        device_blocks=max(blocks(shared) + AGENTS_IN_POOL * blocks(typical - shared), blocks(context)),
        host_blocks=(len(scripts) + 1) * blocks(context) if policy.uses_host else 0,
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
    on_turn: TurnListener,
) -> SceneFacts:
    """Run every script in a thread of its own until all are done.

    Args:
        model: the real model.
        config: sizes and policy of this run's engine.
        scripts: what the agents do.
        on_event: told of every park and restore, in the engine's thread.
        on_turn: told the agent's name and the tokens it generated after each turn, in the agent's thread.

    Raises:
        EngineError: a request was refused or failed.
    """
    from kvtrace.engine import Engine

    moves = {EventKind.PARK: 0, EventKind.RESTORE: 0}
    names: dict[str, str] = {}

    def count(event: EngineEvent) -> None:
        if event.kind in moves:
            moves[event.kind] += 1
        on_event(replace(event, agent=names[event.agent]))

    started = time.monotonic()
    with Engine.start(model, config) as engine:
        engine.on_event(count)
        subscribe(engine.signal)
        try:
            with ThreadPoolExecutor(len(scripts), thread_name_prefix="agent") as pool:
                work = [pool.submit(_work, engine, model, script, names, on_turn) for script in scripts]
                try:
                    whole = _watch(engine, work)
                except BaseException:
                    # Leaving the pool would else wait for the other agents' whole scripts.
                    _send_home(engine, work)
                    raise
        finally:
            unsubscribe(engine.signal)
        wall_s, end = time.monotonic() - started, engine.state()
    return SceneFacts(
        policy=config.policy.value,
        wall_s=wall_s,
        agents_whole=max(whole),
        agents_whole_mean=sum(whole) / len(whole),
        parks=moves[EventKind.PARK],
        restores=moves[EventKind.RESTORE],
        out_bytes=end.link.out_total_bytes,
        in_bytes=end.link.in_total_bytes,
        totals=end.totals,
    )


def _watch(engine: Engine, work: list[Future[None]]) -> list[int]:
    """Wait for the agents; how many had their whole KV somewhere, sampled at a steady rate. Raises what one raised."""
    samples, pending = [], set(work)
    while pending:
        done, pending = wait(pending, timeout=WATCH_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        samples.append(sum(1 for record in engine.state().agents if _is_whole(record)))
    return samples


def _send_home(engine: Engine, work: list[Future[None]]) -> None:
    """End the agents' requests and tools, until every agent has noticed."""
    engine.close()
    while wait(work, timeout=LEAVE_S).not_done:
        stop_tools()


def _is_whole(record: AgentRecord) -> bool:
    return record.state is not AgentState.HUMAN and 0 < record.context_tokens <= record.kept_tokens


def _work(
    engine: Engine, model: LoadedModel, script: AgentScript, names: dict[str, str], on_turn: TurnListener
) -> None:
    """One agent's life: generate, call the tool the script names, append its result, generate again.

    It notes its name under its id in ``names``; the id is of this run alone, since other runs have the same names.
    """
    from kvtrace.engine.model import continue_chat, encode_chat

    with agent(script.name) as me:
        names[me.id] = script.name
        tokens = encode_chat(model.tokenizer, script.messages())
        for number, step in enumerate(script.steps):
            answer = _answer(engine, model, me.id, tokens, {f"{me.id}/{number}": step.tool})
            on_turn(script.name, answer)
            result = TOOLS[step.tool](step.argument)
            message = {"role": "user", "content": f"{step.tool} returned:\n{result}"}
            tokens = continue_chat(model.tokenizer, [*tokens, *answer], message)
        on_turn(script.name, _answer(engine, model, me.id, tokens, {}))


def _answer(engine: Engine, model: LoadedModel, agent_id: str, tokens: list[int], calls: dict[str, str]) -> list[int]:
    """Generate one turn, which ends in ``calls`` (id to tool), and return its tokens."""
    from kvtrace.engine import Sampling

    with generation(model.model_id, provider="kvtrace") as span:
        stream = engine.submit(agent_id, tokens, Sampling(max_tokens=ANSWER_TOKENS))
        done = stream.result(timeout=ANSWER_TIMEOUT_S)
        usage = done.usage
        span.usage(input_tokens=usage.prompt_tokens, output_tokens=usage.output_tokens)
        span.queued(usage.wait_intervals_unix_ns)
        span.finish("tool_calls" if calls else done.finish_reason)
        span.tool_calls([(tool, call_id) for call_id, tool in calls.items()])
        engine.turn_ended(agent_id, calls)
    return list(done.tokens)
