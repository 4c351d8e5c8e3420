"""/v1/messages/count_tokens by way of vLLM's /tokenize, which renders the chat template like a call."""

from collections.abc import Mapping
from typing import Any

from rolloutgen.gateway.anthropic.request import to_chat


def to_tokenize(body: Mapping[str, Any], *, system_first: bool = False) -> dict[str, Any]:
    """The body for /tokenize; chat_template_kwargs are the caller's to add. Raises BadRequestError."""
    chat = to_chat(body, system_first=system_first)
    kept = {key: chat[key] for key in ("model", "messages", "tools") if key in chat}
    return kept | {"add_generation_prompt": True}


def from_tokenize(answer: Mapping[str, Any]) -> dict[str, int]:
    """The answer for the client."""
    return {"input_tokens": int(answer["count"])}
