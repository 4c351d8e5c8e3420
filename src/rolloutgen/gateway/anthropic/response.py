"""A chat completion as an Anthropic message."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

SIGNATURE: Final = "unsigned"
"""Of every thinking block: clients want a text there, and nobody checks it."""
INVALID: Final = "INVALID_JSON"
"""Where a call's arguments are no JSON object, its input is ``{INVALID: the text}``: the wrapping that Anthropic's
documentation of fine-grained tool streaming advises. The tool then fails on its input, and the model is told."""

_WHOLE: Final = frozenset({"stop", "tool_calls"})
Block = dict[str, Any]


def from_chat(answer: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The message for a whole ``chat.completion``; ``model`` is the name that the client is told."""
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [call["function"].get("arguments") or "" for call in message.get("tool_calls") or ()]
    reason, sequence = ending(choice.get("finish_reason"), choice.get("stop_reason"), calls)
    return {
        "id": answer.get("id") or "",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _content(message),
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage_of(answer.get("usage")),
    }


def _content(message: Mapping[str, Any]) -> list[Block]:
    """Thoughts, text, calls. An empty answer is one empty text: clients count on a first block."""
    content: list[Block] = []
    if thoughts := message.get("reasoning"):
        content.append({"type": "thinking", "thinking": thoughts, "signature": SIGNATURE})
    if said := message.get("content"):
        content.append({"type": "text", "text": said})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        wanted = input_of(function.get("arguments") or "")
        content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": wanted})
    return content or [{"type": "text", "text": ""}]


def input_of(arguments: str) -> dict[str, Any]:
    """A call's input; no arguments at all are an empty one."""
    if not arguments:
        return {}
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {INVALID: arguments}


def is_whole(arguments: str) -> bool:
    """Whether ``arguments`` are a JSON object, from its first brace to its last."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


def ending(finish: str | None, stop: Any, calls: Sequence[str]) -> tuple[str, str | None]:
    """``stop_reason`` and ``stop_sequence``, from vLLM's finish_reason, its stop_reason and the calls' arguments.

    Whatever cut the answer short (length, repetition, no reason at all) is ``max_tokens``. A stop sequence that cut
    the last call short counts as that: the call must not run.
    """
    if finish not in _WHOLE:
        return "max_tokens", None
    if isinstance(stop, str) and not (calls and is_whole(calls[-1])):
        return "stop_sequence", stop
    return ("tool_use" if calls else "end_turn"), None


def usage_of(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Tokens. Anthropic counts those that came from the cache apart from ``input_tokens``."""
    given = usage or {}
    cached = (given.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": max(0, (given.get("prompt_tokens") or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": given.get("completion_tokens") or 0,
    }
