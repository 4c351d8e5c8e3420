"""Is an answer the work of a language model? Broken weights give one token for ever, signs without words, or noise."""

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Final

_ONE_TOKEN: Final = re.compile(r"(\s*\S{1,24}?\s*)\1{7,}\S*\s*")
_WORDS_SHARE: Final = 0.5
_BROKEN_SHARE: Final = 0.05
_NOISE: Final = -6.0
"""Mean log-probability of sampled tokens: a model without knowledge has about -ln(vocabulary), -10 or below; any model
that was trained has above -3 on what it says itself."""


def gibberish(text: str, logprobs: Sequence[float] = ()) -> str:
    """What shows that a short answer is none, for people (empty: it may be one). ``logprobs`` of its tokens."""
    said = text.strip().rstrip("\ufffd")  # the last letter may be cut in two
    if not said:
        return "it is empty"
    if said.count("\ufffd") > _BROKEN_SHARE * len(said):
        return "it has bytes that are no text"
    if _ONE_TOKEN.fullmatch(said):
        return "it is one token repeated"
    if sum(unicodedata.category(letter)[0] in "LMNZ" or letter.isspace() for letter in said) < _WORDS_SHARE * len(said):
        return "it has more signs than letters"
    mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
    if math.isnan(mean) or mean < _NOISE:
        return f"the mean log-probability of its tokens is {mean:.1f}: as good as chance"
    return ""
