"""System text: the request's own, and that of system messages amid the conversation."""

from collections.abc import Mapping
from typing import Any, Final

from rolloutgen.gateway.anthropic.offered import CHANGES
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


def inline_text(content: Any, where: str) -> str:
    """The text of a system message amid the conversation; what it changes of the tools is ``offered``'s business."""
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and _changes_tools(block))]
    return system_text(content, where)


def _changes_tools(block: Mapping[str, Any]) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and kind in CHANGES


def _block(block: Any, where: str) -> str:
    kind = mapping(block, where).get("type")
    if kind != "text":
        raise BadRequestError(f"{where}: a system prompt is made of text blocks only")
    return text(block.get("text"), f"{where}.text")


def _without_billing(said: str) -> str:
    return said.partition("\n")[2] if said.startswith(_BILLING) else said
