"""A Messages request as a chat/completions body.

Passed on as the scaffold asked, for the pins to decide: model, max_tokens, temperature, top_p, top_k, stop sequences,
effort and the format of the output. Dropped: metadata, cache_control, the budget of thinking, context_management and
every field that is not known.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rolloutgen.gateway.anthropic.messages import convert
from rolloutgen.gateway.anthropic.shapes import mapping, number, sequence, shallow, text, wrong
from rolloutgen.gateway.anthropic.system import system_text
from rolloutgen.gateway.anthropic.tools import tool_fields
from rolloutgen.gateway.errors import BadRequestError

INLINE_SYSTEM_PROBE: Final[Mapping[str, Any]] = {
    "messages": [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")],
    "add_generation_prompt": True,
}
"""A body for vLLM's /tokenize: refused (400) where the chat template wants one system message, at the beginning."""

_NUMBERS: Final = ("max_tokens", "temperature", "top_p", "top_k")


def to_chat(body: Mapping[str, Any], *, system_first: bool = False) -> dict[str, Any]:
    """The chat/completions body for ``body``. Raises BadRequestError, with a text for people.

    System messages amid the conversation keep their place; with ``system_first`` they are refused, for chat templates
    that take them at the beginning only (see ``INLINE_SYSTEM_PROBE``).
    """
    messages = [mapping(message, f"messages[{n}]") for n, message in _numbered(body)]
    if system_first:
        _refuse_system(messages)
    first = system_text(body.get("system") or "", "system")
    head = [{"role": "system", "content": first}] if first else []
    said = convert(messages)
    if not said:
        raise BadRequestError("messages: none of them says anything")
    chat = {"messages": head + said}
    return chat | _sampling(body) | _stream(body) | _output(body) | tool_fields(body, messages)


def _refuse_system(messages: Sequence[Mapping[str, Any]]) -> None:
    """In words by which Claude Code (2.1.332) sends the same as a reminder in the user's messages, from then on.

    Merged into the first system message, as vLLM does, each new one would change the prompt from its beginning on.
    """
    for n, message in enumerate(messages):
        if message.get("role") == "system":
            raise BadRequestError(
                f"messages.{n}: use the top-level 'system' parameter for the initial system prompt: the model's "
                "chat template takes no system message at another place"
            )


def _numbered(body: Mapping[str, Any]) -> enumerate[Any]:
    messages = sequence(body.get("messages"), "messages")
    if not messages:
        raise BadRequestError("messages: must not be empty")
    return enumerate(messages)


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.get("model") is not None:
        fields["model"] = text(body["model"], "model")
    fields |= {key: number(body[key], key) for key in _NUMBERS if body.get(key) is not None}
    if fields.get("max_tokens", 1) < 1:
        raise wrong("max_tokens", "a number above 0", fields["max_tokens"])
    if stops := sequence(body.get("stop_sequences") or [], "stop_sequences"):
        fields["stop"] = [text(stop, f"stop_sequences[{n}]") for n, stop in enumerate(stops)]
    return fields


def _stream(body: Mapping[str, Any]) -> dict[str, Any]:
    """The last event of a stream tells its usage, so it is asked for."""
    return {"stream": True, "stream_options": {"include_usage": True}} if body.get("stream") is True else {}


def _output(body: Mapping[str, Any]) -> dict[str, Any]:
    """Effort and format; thinking that is switched off is an effort of none, and that comes before any other."""
    wish = mapping(body.get("output_config") or {}, "output_config")
    thinking = mapping(body.get("thinking") or {}, "thinking")
    fields: dict[str, Any] = {}
    if wish.get("effort") is not None:
        fields["reasoning_effort"] = text(wish["effort"], "output_config.effort")
    if thinking.get("type") == "disabled":
        fields["reasoning_effort"] = "none"
    if wish.get("format") is not None:
        fields["response_format"] = {"type": "json_schema", "json_schema": _schema(wish["format"])}
    return fields


def _schema(given: Any) -> dict[str, Any]:
    place = "output_config.format.schema"
    schema = mapping(mapping(given, "output_config.format").get("schema"), place)
    return {"name": "json_schema", "schema": shallow(schema, place)}
