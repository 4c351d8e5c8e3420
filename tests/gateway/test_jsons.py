"""Bodies as hostile as a sandbox can make them: what they may cost, and text that no tokenizer takes."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rolloutgen.gateway import bodies, jsons
from rolloutgen.gateway.errors import BadRequestError

_PIECES = [r"\ud83d", r"\ude00", r"\uD83D\uDE00", r"\\", r"\\u", r"\\ud83d", r"\n", r"\"", r"\u0041", "ud83d", "a"]


@given(some.lists(some.sampled_from(_PIECES), max_size=8))
def test_halves_of_pairs_become_the_replacement_character(pieces: list[str]) -> None:
    raw = f'["{"".join(pieces)}"]'.encode()
    assert jsons.loads(raw) == [re.sub("[\ud800-\udfff]", "\ufffd", json.loads(raw)[0])]


@pytest.mark.parametrize("raw", [rb'["\ud800]', b'["\\ud800\0"]', rb'["\ud800", NaN]', rb'["\ud8"]'])
def test_what_is_no_json_stays_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        jsons.loads(raw)


@pytest.mark.parametrize("value", [b"1,", b"{},", b'"",', b"[],"])
def test_a_body_of_too_many_values_is_not_even_parsed(value: bytes) -> None:
    """One of 64 MiB would take seconds and gigabytes, for which every other attempt's calls would wait."""
    most = b'{"x": [' + value * (bodies.MAX_VALUES + 1) + b"0]}"
    with pytest.raises(BadRequestError, match="values") as refused:
        bodies.parse(most)
    assert refused.value.status == 413
    assert bodies.parse(b'{"x": "' + b"a" * 2 * bodies.MAX_VALUES + b'"}')
