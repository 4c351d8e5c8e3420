"""outcome.json is written from plain types, or loudly not at all (C14), and read by its stable fields (C13)."""

import datetime as dt
import enum
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rolloutgen.errors import StoreError
from rolloutgen.models import Attempt, Instance, Trial
from rolloutgen.outcomes import Cause, Flag, Result
from rolloutgen.results.records import InvalidRecordError, decode, encode, plain
from samples import verdict

ATTEMPT = Attempt(Trial(Instance("a", Path("/t")), 2), 3, Path("/x"))


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(7), 7),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (np.str_("s"), "s"),
        (np.datetime64("2026-01-02T03:04:05"), "2026-01-02T03:04:05"),
        (pd.Timestamp("2026-01-02T03:04:05Z"), "2026-01-02T03:04:05+00:00"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (b"\xff\x00", "/wA="),
        (float("nan"), "nan"),
        (np.float64("inf"), "inf"),
        (2**70, str(2**70)),
        (PurePosixPath("/a"), "/a"),
        (Colour.RED, "red"),
        ({1: (2, {3})}, {"1": [2, [3]]}),
        ("lone \udc80 surrogate", "lone \\udc80 surrogate"),
        (Flag.OOM, "oom"),
    ],
    ids=repr,
)
def test_what_has_a_plain_form_is_written_in_it(value: Any, expected: object) -> None:
    written = orjson.loads(encode(ATTEMPT, verdict(True, details={"value": value, "deep": [{"er": value}]}), "run"))
    assert written["details"] == {"value": expected, "deep": [{"er": expected}]}


@pytest.mark.parametrize("value", [object(), Decimal("0.1"), Fraction(1, 3), 1j, pd.NA, print], ids=repr)
def test_what_has_none_is_refused_loudly(value: object) -> None:
    with pytest.raises(StoreError, match=type(value).__name__):
        encode(ATTEMPT, verdict(True, details={"value": value}), "run")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=10,
)


@hypothesis_settings(deadline=None)
@given(details=st.dictionaries(st.text(), json_values, max_size=3), message=st.text(), name=st.text(min_size=1))
def test_anything_plain_is_written_and_read_back(details: dict[str, object], message: str, name: str) -> None:
    """No evidence can spoil a verdict: what is written can always be read."""
    name = name.encode("utf-8", "replace").decode()
    attempt = Attempt(Trial(Instance(name, Path("/t")), 0), 1, Path("/x"))
    record = decode(encode(attempt, verdict(False, details=details, message=message), "run"))
    assert (record.instance_id, record.trial, record.result, record.reward) == (name, 0, Result.FAIL, 0.0)


@given(json_values)
def test_plain_is_idempotent(value: object) -> None:
    once = plain(value)
    assert plain(once) == once


def test_all_that_the_tables_need_is_read_back() -> None:
    outcome = verdict(True, reward=0.1 + 0.2, flags=(Flag.OOM, Flag.MAX_TURNS), turns=0)
    record = decode(encode(ATTEMPT, outcome, "run"))
    assert (record.instance_id, record.trial, record.attempt) == ("a", 2, 3)
    assert record.reward == 0.1 + 0.2
    assert (record.flags, record.turns, record.task_digest) == ("oom max_turns", 0, "digest")
    assert record.times == (outcome.times.started_at, outcome.times.finished_at, 1.5, 50.0, 5.25, 0.0, None, None, None)


@pytest.mark.parametrize("cause", list(Cause))
def test_an_error_keeps_its_cause_kind_and_charge(cause: Cause) -> None:
    outcome = verdict(False, reward=None, cause=cause, message="why")
    record = decode(encode(ATTEMPT, outcome, "run"))
    assert (record.cause, record.error, record.charged) == (cause, outcome.kind, outcome.charged)


@pytest.mark.parametrize("field", ["schema_version", "instance_id", "trial", "result", "reward"])
def test_a_record_without_a_stable_field_is_none(field: str) -> None:
    whole = orjson.loads(encode(ATTEMPT, verdict(True), "run"))
    del whole[field]
    with pytest.raises(InvalidRecordError):
        decode(orjson.dumps(whole))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", "1"),
        ("reward", True),
        ("trial", "0"),
        ("trial", 0.0),
        ("trial", True),
        ("result", ["pass"]),
        ("instance_id", 7),
    ],
)
def test_a_stable_field_of_another_type_is_refused(field: str, value: object) -> None:
    whole = orjson.loads(encode(ATTEMPT, verdict(True), "run"))
    with pytest.raises(InvalidRecordError):
        decode(orjson.dumps({**whole, field: value}))


@given(st.integers(min_value=0))
def test_every_cut_of_a_record_is_refused(cut: int) -> None:
    """A torn write never looks like a verdict."""
    data = encode(ATTEMPT, verdict(True), "run").rstrip()
    with pytest.raises(InvalidRecordError):
        decode(data[: cut % len(data)])


def test_rewards_keep_every_digit() -> None:
    rewards = {"a": math.pi, "b": 1e-300}
    assert orjson.loads(encode(ATTEMPT, verdict(True, rewards=rewards), "run"))["rewards"] == rewards
