"""Was the context full? Servers say it in several ways, and none of them is a code."""

import re
from typing import Final

_WORDINGS: Final = re.compile(
    r"maximum (context|model|input) length|context[ _-]length|context window|max_model_len|max_seq_len"
    r"|too many (input |prompt )?tokens|(prompt|input) (is|was) too long|longer than the (maximum|model)"
    r"|max_tokens must be at least 1",
    re.IGNORECASE,
)
"""The last one is vLLM's for a prompt that fills the context to its last token: what we send is never 0."""
_STATUSES: Final = frozenset({400, 413, 422})


def refusal_is_full(status: int, text: str) -> bool:
    """Whether a refusal with this status and text means that the request does not fit."""
    return status in _STATUSES and _WORDINGS.search(text) is not None
