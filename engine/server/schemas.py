"""Bodies of requests, as OpenAI's API reference has them. Fields that are not here are passed over."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

_PART: Final = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CALL: Final = {
    "type": "object",
    "required": ["id", "type", "function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        },
    },
}
# What a message is, for the document; it is read by who renders it, so that it reaches the template as it was sent.
MESSAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": _PART}]},
        "tool_calls": {"type": "array", "items": _CALL},
        "tool_call_id": {"type": "string"},
        "reasoning_content": {"type": "string"},
    },
}

# Whole lists are checked in C, and a wrong one ends at its first wrong element.
TokenIds = Annotated[list[Annotated[int, Strict()]], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]
ManyTokenIds = Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]

MOST_PROMPTS: Final = 128


def _few(prompt: Any) -> Any:
    # Before anything looks into them: millions of short prompts fit into a body.
    if isinstance(prompt, list) and len(prompt) > MOST_PROMPTS and not isinstance(prompt[0], int):
        raise PydanticCustomError("too_many", f"{len(prompt)} prompts are more than {MOST_PROMPTS}: send fewer")
    return prompt


Prompt = Annotated[Text | TokenIds | Texts | ManyTokenIds, Field(union_mode="left_to_right"), BeforeValidator(_few)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    """What a stream has besides its text."""

    include_usage: bool = False


class SamplingFields(BaseModel):
    """What both kinds of completion share. ``null`` is as good as leaving a field out."""

    model_config = ConfigDict(extra="ignore")

    model: str
    n: Annotated[int, Field(ge=1, le=64)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Finite, Field(ge=0)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: int | None = Field(None, description="0 or -1: off")
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0)] | None = None
    logit_bias: dict[str, Annotated[Finite, Field(ge=-100, le=100)]] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Strict()]], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    return_token_ids: bool | None = Field(None, description="choices have token_ids, chunks those that are new")
    cache_salt: str | None = Field(None, description="requests with other salts share no cached prefix")


class ChatRequest(SamplingFields):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[list[Annotated[dict[str, Any], WithJsonSchema(MESSAGE_SCHEMA)]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: Any = Field(None, description="refused: use tools")
    function_call: Any = Field(None, description="refused: use tool_choice")
    modalities: list[str] | None = Field(None, description="text only")


class CompletionRequest(SamplingFields):
    """Body of ``/v1/completions``: text, token ids, or a list of either."""

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = Field(None, description="refused unless false")
    best_of: int | None = Field(None, description="refused unless n")
    suffix: str | None = Field(None, description="refused")


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Body of every answer that is no success."""

    error: ErrorObject


class PromptDetails(BaseModel):
    """What the prompt's tokens cost."""

    cached_tokens: int


class KvtraceUsage(BaseModel):
    """kvtrace's own figures of a request. ``queued_unix_ns``: start, end, start, end … of its waits."""

    agent: str
    cached_device_tokens: int
    cached_host_tokens: int
    prefilled_tokens: int
    reprefilled_tokens: int
    diverged_tokens: int
    queued_s: float
    restoring_s: float
    queued_unix_ns: list[int]


class UsageBody(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    kvtrace: KvtraceUsage


class FunctionBody(BaseModel):
    """What a tool call calls."""

    name: str
    arguments: str


class ToolCallBody(BaseModel):
    """A tool call that the model asks for."""

    id: str
    type: str
    function: FunctionBody


class MessageBody(BaseModel):
    """The assistant's message."""

    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    refusal: str | None = None


class ChatChoice(BaseModel):
    """One of ``n`` answers."""

    index: int
    message: MessageBody
    logprobs: dict[str, Any] | None
    finish_reason: str
    token_ids: list[int] | None = None


class ChatResponse(BaseModel):
    """Answer of ``/v1/chat/completions`` without ``stream``."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class TextChoice(BaseModel):
    """One of the completions."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """Answer of ``/v1/completions`` without ``stream``."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody


class ModelBody(BaseModel):
    """A model that can be asked."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """Answer of ``/v1/models``."""

    object: str
    data: list[ModelBody]


class Health(BaseModel):
    """Answer of ``/health``."""

    status: str
    phase: str
    seconds: float
