"""Secrets in texts of a config: which words carry one, and the words without it."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

MASK: Final = "***"
CARRIERS: Final = frozenset({"VLLM_ENV", "VLLM_EXTRA_ARGS"})
"""The keys whose words may carry a secret: NAME=VALUE, --flag=VALUE, --flag VALUE."""

_SECRET: Final = re.compile(r"key|token$|secret|passw", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether what is called so is a secret: HF_TOKEN, --api-key, DB_PASSWORD; max_tokens is none."""
    return bool(_SECRET.search(name))


def masked_words(words: Iterable[str]) -> Iterator[str]:
    """``--api-key x`` becomes ``--api-key ***``, ``HF_TOKEN=x`` becomes ``HF_TOKEN=***``."""
    hide = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = is_secret(name)
        if hide and not word.startswith("--"):
            yield MASK
        else:
            yield f"{name}={MASK}" if equals and secret else word
        hide = secret and not equals and word.startswith("--")
