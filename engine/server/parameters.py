"""From a request's fields to the engine's sampling settings. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any, Final

from ..grammar import Grammar
from ..sequence import Sampling
from .errors import ApiError
from .schemas import ChatRequest, CompletionRequest, SamplingFields

_MOST_STOPS: Final = 16
_MOST_STOP: Final = 1024  # characters
_SHRINKS: Final = 4  # by which factor a tokenizer's normalisation may shorten a text; NFC's is at most 3
_BODY_BYTES: Final = 2 << 20  # for everything besides the prompt's own tokens: tools, schemas, a history's JSON
_BYTES_A_TOKEN: Final = 64  # a token of text is 4 or 5, escaped at most six times that
_BYTES_AN_ID: Final = 16  # where prompts come by the dozen; an id has up to 6 digits
_OFF: Final = -1  # top_k of clients that follow vLLM


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that names no value gets: the model's own generation settings, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, generation_config: Any) -> Defaults:
        """Read a transformers generation config, where it says that tokens are to be drawn."""
        if not getattr(generation_config, "do_sample", False):
            return cls()

        def given(name: str, default: float) -> float:
            value = getattr(generation_config, name, None)
            return value if isinstance(value, int | float) else default

        return cls(
            temperature=given("temperature", 1.0),
            top_p=given("top_p", 1.0),
            top_k=int(given("top_k", 0)),
            min_p=given("min_p", 0.0),
            repetition_penalty=given("repetition_penalty", 1.0),
        )


@dataclass(frozen=True, slots=True)
class Room:
    """How long requests may be: prompt plus output, and positions that the whole KV pool holds.

    What is refused here "is too long" by those words: litellm, and agents built on it, know by them that a shorter history
    would be taken.

    ``token_characters`` is the length of the vocabulary's longest token.
    """

    context_tokens: int
    pool_tokens: int
    token_characters: int = 0

    def body_bytes(self, prompts: int = 1) -> int:
        """Bytes of a body beyond which it can hold no request that fits, however it was written."""
        a_token = _BYTES_A_TOKEN if prompts == 1 else _BYTES_AN_ID * prompts
        return _BODY_BYTES + a_token * self.context_tokens

    def check_messages(self, messages: int) -> None:
        """Refuse a conversation of more messages than there may be tokens, before minutes go into rendering it.

        Raises:
            ApiError: 400, there are too many.
        """
        if messages > self.context_tokens:
            raise ApiError(
                400,
                f"the prompt is too long: {messages} messages cannot be {self.context_tokens} tokens; leave some out",
                param="messages",
                code="context_length_exceeded",
            )

    def check_text(self, characters: int) -> None:
        """Refuse a text that cannot fit however it is cut into tokens, before minutes go into cutting it.

        Raises:
            ApiError: 400, it is too long.
        """
        tokens = min(self.context_tokens, self.pool_tokens + 1)
        if characters > tokens * self.token_characters * _SHRINKS:
            raise ApiError(
                400,
                f"the prompt is too long: {characters} characters cannot be {tokens} tokens; shorten it",
                code="context_length_exceeded",
            )

    def left(self, prompt_tokens: int) -> int:
        """Output tokens for which there is room behind a prompt.

        Raises:
            ApiError: 400, there is none; the message has both numbers.
        """
        most = min(self.context_tokens, self.pool_tokens + 1)
        if prompt_tokens < most:
            return most - prompt_tokens
        what = "the context" if most == self.context_tokens else "the KV pool"
        raise ApiError(
            400,
            f"the prompt is too long: it has {prompt_tokens} tokens, {what} holds {most} with the answer; shorten it, or "
            "start kvtrace serve with more --context or --kv-vram",
            code="context_length_exceeded",
        )


def chat_sampling(request: ChatRequest, defaults: Defaults, room: int) -> Sampling:
    """How the answers of a chat request are sampled, without a grammar; ``room`` is for how many tokens there is room.

    Raises:
        ApiError: 400, a field that is not supported or contradicts another.
    """
    if request.functions is not None or request.function_call is not None:
        raise ApiError(
            400, "functions and function_call are not supported: send tools and tool_choice", param="functions"
        )
    if set(request.modalities or ["text"]) != {"text"}:
        raise ApiError(400, "only text is generated here: leave modalities out", param="modalities")
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    most = request.max_completion_tokens or request.max_tokens or room
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _sampling(request, defaults, most, logprobs)


def completion_sampling(request: CompletionRequest, defaults: Defaults) -> Sampling:
    """How completions are sampled.

    Raises:
        ApiError: 400, a field that is not supported.
    """
    if request.echo:
        raise ApiError(400, "echo is not supported: put the prompt before the text yourself", param="echo")
    if request.suffix:
        raise ApiError(400, "suffix is not supported: this model cannot fill in the middle", param="suffix")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise ApiError(400, "best_of is not supported: ask for n and choose yourself", param="best_of")
    return _sampling(request, defaults, request.max_tokens or 16, request.logprobs)


def for_choice(sampling: Sampling, index: int, grammar: Grammar | None = None) -> Sampling:
    """The settings of one of ``n`` choices: a random stream and a grammar of its own."""
    seed = secrets.randbits(62) if sampling.seed is None else sampling.seed + index
    return replace(sampling, seed=seed, grammar=grammar)


def stop_strings(request: SamplingFields) -> list[str]:
    """The request's stop strings.

    Raises:
        ApiError: 400, too many or too long.
    """
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > _MOST_STOPS or any(len(stop) > _MOST_STOP for stop in stops):
        raise ApiError(400, f"give at most {_MOST_STOPS} stop strings of {_MOST_STOP} characters", param="stop")
    return [stop for stop in stops if stop]


def _sampling(request: SamplingFields, defaults: Defaults, most: int, logprobs: int | None) -> Sampling:
    top_k = defaults.top_k if request.top_k is None else request.top_k
    return Sampling(
        max_tokens=most,
        temperature=_given(request.temperature, defaults.temperature),
        top_p=_given(request.top_p, defaults.top_p),
        top_k=0 if top_k == _OFF else top_k,
        min_p=_given(request.min_p, defaults.min_p),
        seed=request.seed,
        stop_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_biases(request.logit_bias or {}),
        logprobs=logprobs,
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _biases(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), bias) for token, bias in biases.items())
    except ValueError:
        raise ApiError(400, "logit_bias: its keys are token ids, as text", param="logit_bias") from None
