"""Errors in the shape of the Anthropic API. Types by status: platform.claude.com/docs/en/api/errors."""

import re
from typing import Any, Final

from rolloutgen.gateway.context import refusal_is_full

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "overloaded_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OURS: Final = 500
"""From here on an error is the server's."""

_TOO_LONG: Final = "prompt is too long"
"""Anthropic's own wording: Claude Code compacts its conversation when it reads it.

Source: the program text of Claude Code 2.1.332, which looks for these words in any case, and for two numbers
behind them (``10 tokens > 8``) to know how much must go. Those are not given: vLLM stops
counting one token past its limit, and without them Claude Code takes a fifth of the conversation away.
"""
_NO_IMAGE: Final = "could not process image"
"""Claude Code then takes the image away, tells the model so and goes on; at any other words it gives up."""
_TEXT_ONLY: Final = re.compile(r"is not a multimodal model|at most \d+ image", re.IGNORECASE)
"""How vLLM 0.32 refuses an image."""


def error_body(status: int, text: str) -> dict[str, Any]:
    """The body of an answer with ``status`` (4xx, 5xx); where clients know a refusal by its words, those come first."""
    said = text
    if refusal_is_full(status, text):
        said = f"{_TOO_LONG}: {text}"
    elif status < _OURS and _TEXT_ONLY.search(text):
        said = f"{_NO_IMAGE}: {text}"
    return {"type": "error", "error": {"type": _type(status), "message": said}}


def _type(status: int) -> str:
    return _TYPES.get(status) or ("api_error" if status >= _OURS else "invalid_request_error")
