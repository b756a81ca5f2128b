"""Body of ``POST /v1/responses``, as OpenAI's API reference has it. Fields that are not here are passed over."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..schemas import Finite


class Reasoning(BaseModel):
    """How much the model is to think."""

    effort: str | None = None


class TextOptions(BaseModel):
    """The form of the answer's text."""

    format: dict[str, Any] | None = None


class ResponsesRequest(BaseModel):
    """What the client sends. ``null`` is as good as leaving a field out."""

    model_config = ConfigDict(extra="ignore")

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Finite, Field(ge=0)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    tools: list[dict[str, Any]] | None = Field(None, description="functions; tools of other kinds are not offered")
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = Field(None, description="refused: nothing is kept here")
    conversation: Any = Field(None, description="refused: nothing is kept here")
    background: bool | None = Field(None, description="refused unless false")


class ResponseBody(BaseModel):
    """Answer without ``stream``."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
