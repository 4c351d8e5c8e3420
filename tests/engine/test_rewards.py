"""What the verifier wrote (A3): read as Harbor reads it, and never guessed."""

from pathlib import Path

import pytest

from rolloutgen.engine.rewards import RewardError, Rewards, read_rewards
from rolloutgen.outcomes import Cause

GOOD = [
    ("reward.txt", b"1", 1.0),
    ("reward.txt", b" 0.25\n", 0.25),
    ("reward.txt", b"-3e-2", -0.03),
    ("reward.json", b'{"reward": 1}', 1.0),
    ("reward.json", b'{"accuracy": 0.5}', 0.5),
    ("reward.json", b'{"speed": 9, "reward": 0.5}', 0.5),
]
BAD = [
    ("reward.txt", b"", Cause.REWARD_MISSING),
    ("reward.txt", b" \n", Cause.REWARD_MISSING),
    ("reward.json", b"", Cause.REWARD_MISSING),
    ("reward.json", b"{}", Cause.REWARD_MISSING),
    ("reward.txt", b"passed", Cause.REWARD_INVALID),
    ("reward.txt", b"nan", Cause.REWARD_INVALID),
    ("reward.txt", b"inf", Cause.REWARD_INVALID),
    ("reward.txt", b"1e999", Cause.REWARD_INVALID),
    ("reward.txt", b"1 1", Cause.REWARD_INVALID),
    ("reward.txt", b"\xff\xfe1", Cause.REWARD_INVALID),
    ("reward.txt", b"1" * (2 << 20), Cause.REWARD_INVALID),
    ("reward.json", b"1.0", Cause.REWARD_INVALID),
    ("reward.json", b"[1]", Cause.REWARD_INVALID),
    ("reward.json", b"{not json", Cause.REWARD_INVALID),
    ("reward.json", b"[" * 100_000, Cause.REWARD_INVALID),
    ("reward.json", b'{"reward": "1"}', Cause.REWARD_INVALID),
    ("reward.json", b'{"reward": null}', Cause.REWARD_INVALID),
    ("reward.json", b'{"reward": NaN}', Cause.REWARD_INVALID),
    ("reward.json", b'{"reward": 1' + b"0" * 400 + b"}", Cause.REWARD_INVALID),
    ("reward.json", b'{"reward": 1, "other": Infinity}', Cause.REWARD_INVALID),
]


@pytest.mark.parametrize(("name", "content", "value"), GOOD)
def test_a_finite_reward_is_read(tmp_path: Path, name: str, content: bytes, value: float) -> None:
    (tmp_path / name).write_bytes(content)
    rewards = read_rewards(tmp_path)
    assert isinstance(rewards, Rewards)
    assert rewards.value == value


@pytest.mark.parametrize(("name", "content", "cause"), BAD)
def test_anything_else_is_an_error_that_says_so(tmp_path: Path, name: str, content: bytes, cause: Cause) -> None:
    (tmp_path / name).write_bytes(content)
    error = read_rewards(tmp_path)
    assert isinstance(error, RewardError)
    assert (error.cause, name in str(error)) == (cause, True)


def test_no_file_is_an_error(tmp_path: Path) -> None:
    error = read_rewards(tmp_path)
    assert isinstance(error, RewardError)
    assert error.cause is Cause.REWARD_MISSING


def test_json_comes_before_text(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("0")
    (tmp_path / "reward.json").write_text('{"reward": 1}')
    rewards = read_rewards(tmp_path)
    assert isinstance(rewards, Rewards)
    assert rewards.value == 1


def test_several_rewards_without_one_called_reward_are_named(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text('{"speed": 1, "accuracy": 0}')
    error = read_rewards(tmp_path)
    assert isinstance(error, RewardError)
    assert error.cause is Cause.REWARD_INVALID
    assert "accuracy, speed" in str(error)
