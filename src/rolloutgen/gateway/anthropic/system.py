"""System text: the request's own, and that of system messages amid the conversation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rolloutgen.gateway.anthropic.shapes import mapping, sequence, text
from rolloutgen.gateway.errors import BadRequestError

_BILLING: Final = "x-anthropic-billing-header"
"""Claude Code's first system block is a line with a hash of the request: it would make every prompt another one."""


def system_text(content: Any, where: str) -> str:
    """Text, or text blocks joined without a space between (as vLLM does); lines of billing are left out."""
    if isinstance(content, str):
        return _without_billing(content)
    blocks = enumerate(sequence(content, where))
    return "".join(_without_billing(_block(block, f"{where}[{n}]")) for n, block in blocks)


def inline_texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The texts of the system messages among ``messages``."""
    for n, message in enumerate(messages):
        if message.get("role") == "system":
            yield system_text(message.get("content"), f"messages[{n}].content")


def _block(block: Any, where: str) -> str:
    kind = mapping(block, where).get("type")
    if kind != "text":
        raise BadRequestError(f"{where}: a system prompt is made of text blocks only")
    return text(block.get("text"), f"{where}.text")


def _without_billing(said: str) -> str:
    return said.partition("\n")[2] if said.startswith(_BILLING) else said
