"""Tools and the choice of one."""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutgen.gateway.anthropic.offered import offered
from rolloutgen.gateway.anthropic.shapes import mapping, name, sequence, shallow, short, text
from rolloutgen.gateway.errors import BadRequestError

Chat = dict[str, Any]


def tool_fields(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Chat:
    """``tools``, ``tool_choice`` and ``parallel_tool_calls``; nothing of them where the model is offered no tools."""
    tools = [_tool(tool, place) for tool, place in offered(sequence(body.get("tools") or [], "tools"), messages)]
    if not tools:
        return {}
    names = {tool["function"]["name"] for tool in tools}
    return {"tools": tools} | _choice(mapping(body.get("tool_choice") or {"type": "auto"}, "tool_choice"), names)


def _tool(tool: Mapping[str, Any], where: str) -> Chat:
    """A tool that the client runs, known by its schema.

    ``strict`` is dropped: it constrains the sampling. Tools that Anthropic's servers run (web_search, code_execution)
    or whose schema only its models know (bash_20250124, computer_...) are refused: a model that was offered one
    and got no answer would make one up.
    """
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        shown = short(kind) if isinstance(kind, str) else "without a known type"
        raise BadRequestError(f"{where}: a tool {shown} is run by Anthropic; only custom tools are served here")
    place = f"{where}.input_schema"
    schema = dict(shallow(mapping(tool.get("input_schema"), place), place))
    schema.setdefault("type", "object")
    function: Chat = {"name": name(tool.get("name"), f"{where}.name")}
    if tool.get("description") is not None:
        function["description"] = text(tool["description"], f"{where}.description")
    return {"type": "function", "function": function | {"parameters": schema}}


def _choice(choice: Mapping[str, Any], names: set[str]) -> Chat:
    alone: Chat = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") is True else {}
    match choice.get("type"):
        case "auto":
            return {"tool_choice": "auto"} | alone
        case "any":
            return {"tool_choice": "required"} | alone
        case "none":
            return {"tool_choice": "none"}
        case "tool":
            wanted = name(choice.get("name"), "tool_choice.name")
            if wanted not in names:
                raise BadRequestError(f"tool_choice.name: {short(wanted)} is none of the tools")
            return {"tool_choice": {"type": "function", "function": {"name": wanted}}} | alone
    raise BadRequestError("tool_choice.type: must be one of auto, any, tool, none")
