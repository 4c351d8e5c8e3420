"""Secrets never reach a log or a stored file."""

import pytest

from rolloutgen.masking import is_secret, masked_words


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "x", "--seed", "3"], ["--api-key", "***", "--seed", "3"]),
        (["--api-key=x"], ["--api-key=***"]),
        (["HF_TOKEN=x", "A=b"], ["HF_TOKEN=***", "A=b"]),
        (["--api-key", "--seed", "3"], ["--api-key", "--seed", "3"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
    ],
)
def test_words(words: list[str], shown: list[str]) -> None:
    assert list(masked_words(words)) == shown


@pytest.mark.parametrize(
    ("name", "secret"), [("DB_PASSWORD", True), ("AWS_SECRET", True), ("max_tokens", False), ("PATH", False)]
)
def test_names(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
