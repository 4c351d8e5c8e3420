"""What the gateway answers a scaffold with, where that is no answer of the model: in the shape of the OpenAI API."""

from typing import Any, Final

from rolloutgen.gateway.context import refusal_is_full

CONTEXT_FULL: Final = "context_length_exceeded"
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_OWN: Final = "api_error"


class BadRequestError(ValueError):
    """A request that no server could answer: its text goes to the scaffold, with ``status`` (4xx)."""

    def __init__(self, text: str, status: int = 400) -> None:
        self.status = status
        super().__init__(text)


def error_body(status: int, text: str) -> dict[str, Any]:
    """The body of an answer with ``status``; also what follows ``data:`` in a stream that has begun.

    A full context has OpenAI's own code, whatever its wording: that is what scaffolds look for.
    """
    code = CONTEXT_FULL if refusal_is_full(status, text) else status
    return {"error": {"message": text, "type": _TYPES.get(status, _OWN), "param": None, "code": code}}
