"""Token ids as text: the same ids, whatever way they came, and nothing that is not a list of ids."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.transcript.token_ids import TokenIds

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(IDS)
def test_the_text_of_a_server_and_the_numbers_are_the_same_ids(ids: list[int]) -> None:
    read = TokenIds.read(orjson.dumps(ids)[1:-1])
    assert read == TokenIds.of(ids)
    assert read is not None
    assert (read.numbers(), read.n, json.loads(read.json())) == (ids, len(ids), ids)


@given(IDS, IDS)
def test_what_begins_with_the_same_bytes_begins_with_the_same_ids(one: list[int], other: list[int]) -> None:
    assert TokenIds.of(other).startswith(TokenIds.of(one)) == (other[: len(one)] == one)
    assert TokenIds.of(one) + TokenIds.of(other) == TokenIds.of(one + other)


def test_a_number_is_no_beginning_of_a_longer_one() -> None:
    assert not TokenIds.of([1, 23]).startswith(TokenIds.of([1, 2]))


@pytest.mark.parametrize("text", [b"1,,2", b",1", b"1,", b"-1", b"1.5", b"1, 2", b"[1]", b"1e5", b"null", b'"1"'])
def test_what_is_no_list_of_ids_is_left_to_others(text: bytes) -> None:
    assert TokenIds.read(text) is None
