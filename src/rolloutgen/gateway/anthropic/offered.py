"""Which tools the model is offered at the end of a conversation that loads, adds and removes some.

A tool with ``defer_loading`` is known to the client and not shown to the model, until a tool's result refers to it
(``tool_reference``) or a system message adds it (``tool_addition``). A chat template has one list of tools, at the
beginning: so a tool that appears later changes the prompt from its beginning on.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rolloutgen.gateway.anthropic.shapes import mapping, name, short
from rolloutgen.gateway.errors import BadRequestError

CHANGES: Final = frozenset({"tool_addition", "tool_removal"})
Block = Mapping[str, Any]


def offered(tools: Sequence[Any], messages: Sequence[Block]) -> list[tuple[Block, str]]:
    """The tools in effect, in the order in which they were given, each with its place. Raises BadRequestError."""
    known: dict[str, tuple[Block, str]] = {}
    for n, tool in enumerate(tools):
        place = f"tools[{n}]"
        known[name(mapping(tool, place).get("name"), f"{place}.name")] = tool, place
    shown = {key for key, (tool, _) in known.items() if tool.get("defer_loading") is not True}
    for block, where in _changes(messages):
        _apply(block, where, known, shown)
    return [found for key, found in known.items() if key in shown]


def _apply(block: Block, where: str, known: dict[str, tuple[Block, str]], shown: set[str]) -> None:
    if block["type"] == "tool_reference":
        shown.add(name(block.get("tool_name"), f"{where}.tool_name"))
        return
    change, place = mapping(block.get("tool"), f"{where}.tool"), f"{where}.tool"
    if change.get("type") == "tool_definition" and block["type"] == "tool_addition":
        change, place = mapping(change.get("definition"), f"{place}.definition"), f"{place}.definition"
        known[name(change.get("name"), f"{place}.name")] = change, place
    elif change.get("type") != "tool_reference":
        raise BadRequestError(f"{place}.type: {short(change.get('type'))} is nothing that can be added or removed")
    key = name(change.get("name"), f"{place}.name")
    (shown.add if block["type"] == "tool_addition" else shown.discard)(key)


def _changes(messages: Sequence[Block]) -> Iterator[tuple[Block, str]]:
    """The blocks that load, add or remove a tool, in order. Wrong shapes are left to those who convert the messages."""
    for n, message in enumerate(messages):
        content = message.get("content")
        for k, block in enumerate(content if isinstance(content, list) else ()):
            kind = block.get("type") if isinstance(block, dict) else None
            if message.get("role") == "system" and isinstance(kind, str) and kind in CHANGES:
                yield block, f"messages[{n}].content[{k}]"
            elif kind == "tool_result" and isinstance(block.get("content"), list):
                yield from _references(block["content"], f"messages[{n}].content[{k}].content")


def _references(content: Sequence[Any], where: str) -> Iterator[tuple[Block, str]]:
    for n, block in enumerate(content):
        if isinstance(block, dict) and block.get("type") == "tool_reference":
            yield block, f"{where}[{n}]"
