"""Was the context full? Servers say it in several ways, and none of them is a code."""

import re
from collections.abc import Mapping
from typing import Any, Final

_WORDINGS: Final = re.compile(
    r"maximum (context|model|input) length|context[ _-]length|context window|max_model_len|max_seq_len"
    r"|too many (input |prompt )?tokens|(prompt|input) (is|was) too long|longer than the (maximum|model)"
    r"|max_tokens must be at least 1",
    re.IGNORECASE,
)
"""The last one is vLLM's for a prompt that fills the context to its last token: MAX_RESPONSE_LEN itself is never 0."""
_STATUSES: Final = frozenset({400, 413, 422})


def refusal_is_full(status: int, text: str) -> bool:
    """Whether a refusal with this status and text means that the request does not fit."""
    return status in _STATUSES and _WORDINGS.search(text) is not None


def answer_is_full(finish_reason: str | None, usage: Mapping[str, Any] | None, max_model_len: int) -> bool:
    """Whether an answer was cut because prompt and completion fill the context, not because it was long itself."""
    if finish_reason != "length" or usage is None:
        return False
    return tokens(usage, "prompt_tokens") + tokens(usage, "completion_tokens") >= max_model_len


def tokens(usage: Mapping[str, Any], name: str) -> int:
    """A count of ``usage``; 0 where it is none."""
    count = usage.get(name)
    return count if isinstance(count, int) else 0
