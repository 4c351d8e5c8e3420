"""Folder names: injective, readable, never a file of ours."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolloutgen.models import Instance, Trial
from rolloutgen.paths import RESERVED, ResultsPaths, default_exp, encode_id, parse_attempt_name, parse_trial_name

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300)


def decoded(name: str) -> bytes | None:
    """The id's bytes, by the rules of encode_id's docstring read backwards; None: only its digest is there."""
    if "%~" in name:
        return None
    plain, *coded = name.split("%")
    return plain.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in coded)


@settings(deadline=None)
@given(ids)
@example("run.json")
@example(".")
@example("..")
@example(".hidden")
@example("a/b\0c\nd")
@example("%41")
@example("A" * 201)
@example("é" * 200)
def test_a_name_tells_its_id_and_no_other(instance_id: str) -> None:
    """Injective: either the name can be read back, or it holds the id's SHA-256."""
    name = encode_id(instance_id)
    raw = instance_id.encode()
    assert decoded(name) == raw or name.endswith("%~" + hashlib.sha256(raw).hexdigest())
    assert len(name.encode()) <= 200
    assert "/" not in name
    assert not name.startswith(".")
    assert name not in RESERVED


@settings(deadline=None)
@given(st.lists(ids, unique=True, max_size=20))
def test_distinct_ids_have_distinct_names(some: list[str]) -> None:
    assert len({encode_id(instance_id) for instance_id in some}) == len(some)


def test_long_ids_with_one_beginning_differ() -> None:
    assert encode_id("x" * 300 + "a") != encode_id("x" * 300 + "b")


@pytest.mark.parametrize("plain", ["django__django-11099", "humaneval_0", "a.b+c@d", "007", "x" * 200])
def test_ordinary_ids_stand_as_they_are(plain: str) -> None:
    assert encode_id(plain) == plain


@pytest.mark.parametrize("name", ["trial_0", "trial_17"])
def test_trial_names(name: str) -> None:
    assert parse_trial_name(name) == int(name.removeprefix("trial_"))
    assert parse_attempt_name(name) is None
    assert parse_attempt_name(f"{name}.attempt_3") == (int(name.removeprefix("trial_")), 3)


@pytest.mark.parametrize("name", ["trial_", "trial_01", "trial_-1", "trial_1 ", "trial_1.tmp", "trial_1\n", "Trial_1"])
def test_other_names_are_no_trials(name: str) -> None:
    assert parse_trial_name(name) is None


@pytest.mark.parametrize(
    "name", ["trial_1.attempt_0", "trial_1.attempt_01", "trial_1.attempt_1.tmp", "trial_1.attempt_"]
)
def test_other_names_are_no_attempts(name: str) -> None:
    assert parse_attempt_name(name) is None


def test_every_file_of_ours_has_a_name_no_instance_can_have(tmp_path: Path) -> None:
    paths = ResultsPaths(tmp_path)
    for ours in (paths.run_json, paths.summary_csv, paths.trials_csv, paths.lock):
        assert paths.instance(ours.name) != ours


def test_the_trials_folder_lies_in_its_instances(tmp_path: Path) -> None:
    """A25: <RESULTS_DIR>/<instance>/<trial>/."""
    trial = Trial(Instance("a", tmp_path), 2)
    assert ResultsPaths(tmp_path).verdict(trial) == tmp_path / "a" / "trial_2"
    assert ResultsPaths(tmp_path).attempt(trial, 3) == tmp_path / "a" / "trial_2.attempt_3"


def test_the_logs_name_is_stable_and_tells_folders_apart() -> None:
    """A23: stable across resumes; A21: nodes with one PROJECT_NAME do not share a log."""
    name = default_exp("swe", Path("/data/node0"))
    assert name == default_exp("swe", Path("/data/node0"))
    assert name.startswith("swe-node0-")
    assert name != default_exp("swe", Path("/other/node0"))
