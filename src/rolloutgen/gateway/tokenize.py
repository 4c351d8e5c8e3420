"""Questions about tokens, answered by vLLM's /tokenize: neither turns of an agent nor recorded, but held like calls."""

from collections.abc import Mapping
from typing import Any, Final

from rolloutgen.gateway import anthropic
from rolloutgen.gateway.bodies import check_chat, check_completion
from rolloutgen.gateway.failures import RefusedError
from rolloutgen.gateway.pins import Pins
from rolloutgen.gateway.upstream import Upstream

_PATH: Final = "/tokenize"
_CHAT: Final = ("messages", "tools", "add_generation_prompt", "continue_final_message")
_COMMON: Final = ("add_special_tokens", "return_token_strs")
_KWARGS: Final = "chat_template_kwargs"


async def tokenize(body: Mapping[str, Any], pins: Pins, upstream: Upstream) -> dict[str, Any]:
    """The answer of /tokenize. Raises BadRequestError, RefusedError and TryFailedError."""
    chat = body.get("messages") is not None
    check_chat(body) if chat else check_completion(body)
    names = (*_CHAT, *_COMMON) if chat else ("prompt", *_COMMON)
    sent = {"model": pins.model} | {name: body[name] for name in names if body.get(name) not in (None, [])}
    if chat and _KWARGS in pins.template:
        sent[_KWARGS] = pins.template[_KWARGS]
    return await upstream.plain(_PATH, sent)


async def count_tokens(
    body: Mapping[str, Any], pins: Pins, upstream: Upstream, *, system_first: bool
) -> dict[str, int]:
    """The answer of /v1/messages/count_tokens. Raises the same."""
    asked = anthropic.to_tokenize(body, system_first=system_first)
    return anthropic.from_tokenize(await tokenize(asked, pins, upstream))


async def system_must_be_first(pins: Pins, upstream: Upstream) -> bool:
    """Whether the model's chat template refuses system messages amid the conversation. Raises TryFailedError."""
    try:
        await upstream.plain(_PATH, {"model": pins.model, **anthropic.INLINE_SYSTEM_PROBE})
    except RefusedError:
        return True
    return False
