"""Errors as Anthropic's clients know them."""

import pytest

from rolloutgen.gateway.anthropic import error_body


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error")),
        *((404, "not_found_error"), (413, "request_too_large"), (422, "invalid_request_error")),
        *((429, "rate_limit_error"), (500, "api_error"), (502, "overloaded_error"), (503, "overloaded_error")),
        *((504, "timeout_error"), (529, "overloaded_error"), (599, "api_error")),
    ],
)
def test_types_by_status(status: int, kind: str) -> None:
    assert error_body(status, "No.") == {"type": "error", "error": {"type": kind, "message": "No."}}


def test_a_full_context_in_the_words_that_claude_code_knows() -> None:
    """Both kinds of vLLM's refusal; the same words in an error of ours are none."""
    said = (
        "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens"
    )
    for text in (said, "The decoder prompt (length 2050) is longer than the maximum model length of 2048."):
        assert error_body(400, text)["error"]["message"] == f"prompt is too long: {text}"
    assert error_body(500, said)["error"]["message"] == said


def test_an_image_that_the_model_cannot_see_in_the_words_that_claude_code_knows() -> None:
    """It takes the image away and goes on; at vLLM's own words it gives up."""
    for text in ("policy is not a multimodal model", "At most 0 image(s) may be provided in one prompt."):
        assert error_body(400, text)["error"]["message"] == f"could not process image: {text}"
