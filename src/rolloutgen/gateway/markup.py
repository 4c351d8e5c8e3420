"""Tool calls that the model server left in the text: its parser is not that of the model (C7)."""

import re
from typing import Final

_OPENINGS: Final = (
    *("<tool_call", "<tool_calls", "<function=", "<function_calls", "<invoke name=", "<minimax:tool_call"),
    *("[TOOL_CALLS]", "<|python_tag|>", "<|tool_call", "<\uff5ctool", "<|action_start|>", "functools["),
)
_MARKUP: Final = re.compile("|".join(map(re.escape, _OPENINGS)))


def find(text: str) -> str:
    """The first opening of a tool call in the text of an answer (empty: there is none)."""
    found = _MARKUP.search(text)
    return found.group() if found else ""
