"""The two ways in which a try of a call at vLLM brings no answer."""

from typing import Final

from rolloutgen.gateway import context, jsons

SHOWN: Final = 500
"""Bytes of what the server said, in messages."""
_OURS: Final = frozenset({401, 403, 404, 408, 409, 425, 429})
"""Refusals that are not the request's fault: the key and the model's name are ours, the others pass."""


def is_refusal(status: object) -> bool:
    """Whether a status means that the request itself is bad."""
    return isinstance(status, int) and 400 <= status < 500 and status not in _OURS  # noqa: PLR2004 - 4xx


class TryFailedError(Exception):
    """``status`` is None without an answer; ``down``: nothing listens there; ``retry_after_sec`` as the server asks."""

    def __init__(
        self, why: str, *, status: int | None = None, down: bool = False, retry_after_sec: float = 0.0
    ) -> None:
        self.status = status
        self.down = down
        self.retry_after_sec = retry_after_sec
        super().__init__(why)


class RefusedError(Exception):
    """``status`` is 4xx, ``body`` the server's own error, ``full`` says that the request does not fit the context."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        text = body.decode(errors="replace")
        self.full = context.refusal_is_full(status, text)
        super().__init__(_message(body) or text[:SHOWN])


def _message(body: bytes) -> str:
    """The text of an error in OpenAI's shape (empty: it has another)."""
    try:
        error = jsons.loads(body)
        message = error["error"]["message"] if "error" in error else error["message"]
    except (ValueError, LookupError, TypeError):
        return ""
    return message if isinstance(message, str) else ""
