"""Errors in the shape of the Anthropic API. Types by status: platform.claude.com/docs/en/api/errors."""

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


def error_body(status: int, text: str) -> dict[str, Any]:
    """The body of an answer with ``status`` (4xx, 5xx)."""
    said = f"{_TOO_LONG}: {text}" if refusal_is_full(status, text) else text
    return {"type": "error", "error": {"type": _type(status), "message": said}}


def _type(status: int) -> str:
    return _TYPES.get(status) or ("api_error" if status >= _OURS else "invalid_request_error")
