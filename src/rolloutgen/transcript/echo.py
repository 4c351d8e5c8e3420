"""Whether a message that a scaffold sends is the reply that the model gave: unchanged, changed, or another one.

Scaffolds send replies back in a form of their own: without empty fields, with the stop sequence put back, stripped,
without the thoughts, tool calls with their arguments written anew.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import orjson

from rolloutgen.transcript.lines import Message, decode

_THOUGHT: Final = "</think>"


class Echo(IntEnum):
    """``SAME``: a chat template makes of it what it makes of the reply, with the stop sequence that was sampled."""

    NONE = 0
    CHANGED = 1
    SAME = 2


def echo(message: Message, reply: Message, stops: Sequence[str] = ()) -> Echo:
    """What ``message`` is of ``reply``; ``stops``: sequences at which that may have stopped, and which it lacks."""
    if message.get("role") != "assistant" or tool_calls(message) != (called := tool_calls(reply)):
        return Echo.NONE
    text, said = text_of(message), text_of(reply)
    if text == said or any(text == said + stop for stop in stops):
        return Echo.SAME if reasoning_of(message) == reasoning_of(reply) else Echo.CHANGED
    answer = said.rpartition(_THOUGHT)[2].strip()
    if not (answer or called):
        return Echo.NONE
    text = text.strip()
    return Echo.CHANGED if text.startswith((said.strip(), answer)) else Echo.NONE


def is_empty(message: Message) -> bool:
    """Whether there is nothing in it that a scaffold could send back."""
    return not text_of(message).strip() and not tool_calls(message)


def continued(message: Message, reply: Message) -> Message:
    """The whole message of which ``message`` is the beginning that was sent, and ``reply`` the rest."""
    whole = {**message, "content": text_of(message) + text_of(reply)}
    if calls := reply.get("tool_calls"):
        whole["tool_calls"] = calls
    return whole


def text_of(message: Message) -> str:
    """Its content as one text; what is no text in it counts for nothing."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "".join(text for text in texts if isinstance(text, str))


def completion_of(message: Message) -> str:
    """The text of an answer that is no chat."""
    text = message.get("text")
    return text if isinstance(text, str) else ""


def reasoning_of(message: Message) -> str:
    """vLLM says ``reasoning``, and takes ``reasoning_content`` too."""
    value = message.get("reasoning") or message.get("reasoning_content")
    return value if isinstance(value, str) else ""


def tool_calls(message: Message) -> list[tuple[Any, Any]]:
    """Name and arguments of each; arguments that are JSON as their values."""
    calls = message.get("tool_calls")
    functions = (call.get("function") for call in calls if isinstance(call, Mapping)) if isinstance(calls, list) else ()
    return [(f.get("name"), _arguments(f.get("arguments"))) for f in functions if isinstance(f, Mapping)]


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return decode(value.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError, orjson.JSONDecodeError):
        return value
