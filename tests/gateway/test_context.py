"""C8: the wordings of a full context."""

import pytest

from rolloutgen.gateway.context import refusal_is_full
from rolloutgen.gateway.errors import error_body

FULL = (
    "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens (2900 in the messages).",
    "Input length (2049) exceeds model's maximum context length (2048).",
    "The decoder prompt (length 2049) is longer than the maximum model length of 2048.",
    "max_tokens must be at least 1, got 0.",
    "prompt is too long: 300000 tokens > 200000 maximum",
    "Requested token count exceeds the model's context_length",
)


@pytest.mark.parametrize("text", FULL)
def test_they_are_known_and_get_one_code(text: str) -> None:
    assert refusal_is_full(400, text)
    assert error_body(400, text)["error"]["code"] == "context_length_exceeded"
    assert error_body(400, text)["error"]["message"] == text


@pytest.mark.parametrize(
    ("status", "text"),
    [(400, "Unexpected role: narrator"), (400, "tools must be a list"), (500, FULL[0]), (429, FULL[0]), (401, FULL[0])],
)
def test_others_are_not(status: int, text: str) -> None:
    assert not refusal_is_full(status, text)
    assert error_body(status, text)["error"]["code"] == status
