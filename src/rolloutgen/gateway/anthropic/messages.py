"""The conversation: each message's blocks as one chat message, tool results as messages of their own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rolloutgen.gateway.anthropic.results import image_part, results
from rolloutgen.gateway.anthropic.shapes import mapping, name, sequence, shallow, short, text, unserved
from rolloutgen.gateway.anthropic.system import inline_text
from rolloutgen.gateway.errors import BadRequestError

Chat = dict[str, Any]
_WRITTEN: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Arguments as models write them, so that a template that takes the text finds what was sampled."""


def convert(messages: Sequence[Mapping[str, Any]]) -> list[Chat]:
    """The chat messages, in order; a message without anything to say is left out, but for the assistant's."""
    chat: list[Chat] = []
    calls: list[str] = []
    for n, message in enumerate(messages):
        content, place = message.get("content"), f"messages[{n}].content"
        match message.get("role"):
            case "user":
                chat += _user(content, place, calls)
            case "assistant":
                chat.append(_assistant(content, place))
                calls = [call["id"] for call in chat[-1].get("tool_calls", ())]
            case "system":
                chat += _system(content, place)
            case role:
                shown = short(role) if isinstance(role, str) else "missing"
                raise BadRequestError(f"messages[{n}].role: {shown} is none of user, assistant, system")
    return chat


def _system(content: Any, where: str) -> list[Chat]:
    said = inline_text(content, where)
    return [{"role": "system", "content": said}] if said else []


def _user(content: Any, where: str, calls: Sequence[str]) -> list[Chat]:
    """Tool results come first: templates want them right behind the calls that they answer."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    answered: list[tuple[Mapping[str, Any], str]] = []
    parts: list[Chat] = []
    for block, kind, place in _blocks(content, where):
        if kind == "tool_result":
            answered.append((block, place))
        elif kind == "image":
            parts.append(image_part(block, place))
        elif kind == "text":
            parts += _text_part(block, place)
        else:
            raise unserved(place, kind, "a user's message")
    return results(answered, calls) + ([{"role": "user", "content": _joined(parts)}] if parts else [])


def _assistant(content: Any, where: str) -> Chat:
    """Thoughts become ``reasoning``; those that are redacted cannot be read by anybody, and are left out."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    parts: list[Chat] = []
    thoughts: list[str] = []
    calls: list[Chat] = []
    for block, kind, place in _blocks(content, where):
        if kind == "text":
            parts += _text_part(block, place)
        elif kind == "thinking":
            thoughts.append(text(block.get("thinking"), f"{place}.thinking"))
        elif kind == "tool_use":
            calls.append(_call(block, place))
        elif kind != "redacted_thinking":
            raise unserved(place, kind, "an assistant's message")
    message: Chat = {"role": "assistant"}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if parts:
        message["content"] = _joined(parts)
    return message | ({"tool_calls": calls} if calls else {})


def _call(block: Mapping[str, Any], where: str) -> Chat:
    wanted = shallow(mapping(block.get("input") or {}, f"{where}.input"), f"{where}.input")
    function = {"name": name(block.get("name"), f"{where}.name"), "arguments": _WRITTEN(wanted)}
    return {"id": name(block.get("id"), f"{where}.id"), "type": "function", "function": function}


def _blocks(content: Any, where: str) -> list[tuple[Mapping[str, Any], Any, str]]:
    """Each block with its type and its place."""
    found = []
    for n, block in enumerate(sequence(content, where)):
        place = f"{where}[{n}]"
        found.append((mapping(block, place), block.get("type"), place))
    return found


def _text_part(block: Mapping[str, Any], where: str) -> list[Chat]:
    said = text(block.get("text"), f"{where}.text")
    return [{"type": "text", "text": said}] if said else []


def _joined(parts: list[Chat]) -> Any:
    """One text alone is the content itself."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
