"""What a request says about tools, checked: which there are, and whether the model may, must or must not call. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..grammar.errors import FieldRefused

MOST_TOOLS: Final = 512
_MOST_NAME: Final = 128


class Mode(StrEnum):
    """What the model may do about tools."""

    NONE = "none"  # must not call
    AUTO = "auto"  # may call
    REQUIRED = "required"  # must call one
    NAMED = "named"  # must call the one that was named


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers. ``parameters`` is its arguments' JSON schema as sent."""

    name: str
    description: str | None
    parameters: dict[str, Any]
    strict: bool
    param: str

    def as_sent(self) -> dict[str, Any]:
        """As chat templates expect it: the API's own form, ``strict`` left out, which no model was trained on."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """A request's tools and how the model is to use them. ``named`` is set with :attr:`Mode.NAMED` alone."""

    tools: tuple[Tool, ...] = ()
    mode: Mode = Mode.NONE
    named: str | None = None
    parallel: bool = True

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that this answer may call."""
        if self.mode is Mode.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.named in (None, tool.name))

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in (Mode.REQUIRED, Mode.NAMED)

    @property
    def strict(self) -> bool:
        """Whether some tool asks for arguments that keep to its schema."""
        return any(tool.strict for tool in self.callable_tools)

    @property
    def most_calls(self) -> int | None:
        """Calls after which the answer is complete; ``None`` for no limit."""
        return None if self.parallel and self.mode is not Mode.NAMED else 1


def read_plan(tools: Any, choice: Any, parallel: bool | None) -> ToolPlan:
    """The plan behind ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a request.

    Raises:
        FieldRefused: one of them is malformed, or asks for what there is not.
    """
    found = _read_tools(tools)
    mode, named = _read_choice(choice, has_tools=bool(found))
    if named is not None and named not in {tool.name for tool in found}:
        raise FieldRefused(f"tool_choice names {named!r}, which is not among the tools", "tool_choice")
    if mode is Mode.REQUIRED and not found:
        raise FieldRefused("tool_choice is 'required', but there are no tools", "tool_choice")
    return ToolPlan(found, mode, named, parallel is not False)


def _read_tools(tools: Any) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise FieldRefused("tools must be an array", "tools")
    if len(tools) > MOST_TOOLS:
        raise FieldRefused(f"{len(tools)} tools; at most {MOST_TOOLS} are supported", "tools")
    found = tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    names = [tool.name for tool in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FieldRefused(f"two tools are called {twice!r}", "tools")
    return found


def _read_tool(tool: Any, param: str) -> Tool:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise FieldRefused(f"{param}: only tools of type 'function' are supported, not {kind!r}", f"{param}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise FieldRefused(f"{param}.function is missing", f"{param}.function")
    name, description = function.get("name"), function.get("description")
    parameters, strict = function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or not name.isprintable():
        raise FieldRefused(f"{param}.function.name must have 1 to {_MOST_NAME} characters", f"{param}.function.name")
    if description is not None and not isinstance(description, str):
        raise FieldRefused(f"{param}.function.description must be text", f"{param}.function.description")
    if parameters is not None and not isinstance(parameters, dict):
        raise FieldRefused(f"{param}.function.parameters must be an object", f"{param}.function.parameters")
    if strict is not None and not isinstance(strict, bool):
        raise FieldRefused(f"{param}.function.strict must be true or false", f"{param}.function.strict")
    schema = parameters or {"type": "object", "properties": {}}
    return Tool(name, description, schema, bool(strict), f"{param}.function.parameters")


def _read_choice(choice: Any, *, has_tools: bool) -> tuple[Mode, str | None]:
    if choice is None:
        return (Mode.AUTO if has_tools else Mode.NONE), None
    if choice in ("none", "auto", "required"):
        return (Mode(choice) if has_tools or choice == "required" else Mode.NONE), None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return Mode.NAMED, name
    raise FieldRefused(
        "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': …}}",
        "tool_choice",
    )
