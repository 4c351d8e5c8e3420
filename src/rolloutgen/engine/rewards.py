"""What the verifier wrote, read as Harbor reads it: reward.json before reward.txt, numbers only, and finite ones."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutgen.errors import AttemptError
from rolloutgen.outcomes import Cause

_JSON, _TEXT = "reward.json", "reward.txt"
_SIZE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rewards:
    """``value`` is compared with PASS_THRESHOLD; ``all`` is what the verifier wrote, by name."""

    value: float
    all: Mapping[str, float]


class RewardError(AttemptError):
    """The verifier left no reward that could be used."""


def read_rewards(folder: Path) -> Rewards | RewardError:
    """Read what lies in the downloaded ``/logs/verifier``. Never raises: what is wrong is part of the evidence."""
    for name, parse in ((_JSON, _parse_json), (_TEXT, _parse_text)):
        path = folder / name
        try:
            if path.is_file():
                with path.open("rb") as file:
                    return choose(parse(_checked(file.read(_SIZE_MAX + 1))))
        except RewardError as error:
            return RewardError(error.cause, f"{name} {error}")
        except OSError as error:
            return RewardError(Cause.REWARD_MISSING, f"{name} could not be read: {error}")
    return RewardError(Cause.REWARD_MISSING, "the verifier wrote neither reward.txt nor reward.json in /logs/verifier")


def refuse_huge(folder: Path) -> None:
    """Raises RewardError for a file that is no reward, and that nobody must read whole: it may be of gigabytes."""
    for name in (_JSON, _TEXT):
        path = folder / name
        if path.is_file() and path.stat().st_size > _SIZE_MAX:
            raise RewardError(Cause.REWARD_INVALID, f"{name} is over {_SIZE_MAX} bytes")


def choose(rewards: Mapping[str, float]) -> Rewards:
    """``reward`` where there is one, else the only one. Raises RewardError."""
    if not rewards:
        raise RewardError(Cause.REWARD_MISSING, "holds no reward")
    if "reward" in rewards:
        return Rewards(rewards["reward"], rewards)
    if len(rewards) > 1:
        names = ", ".join(sorted(rewards))
        raise RewardError(Cause.REWARD_INVALID, f"holds {len(rewards)} rewards and none is called 'reward': {names}")
    return Rewards(next(iter(rewards.values())), rewards)


def _checked(raw: bytes) -> str:
    if not raw.strip():
        raise RewardError(Cause.REWARD_MISSING, "is empty")
    if len(raw) > _SIZE_MAX:
        raise RewardError(Cause.REWARD_INVALID, f"is over {_SIZE_MAX} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RewardError(Cause.REWARD_INVALID, "is not text") from error


def _parse_text(text: str) -> dict[str, float]:
    return {"reward": _number("reward", text.strip())}


def _parse_json(text: str) -> dict[str, float]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RewardError(Cause.REWARD_INVALID, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RewardError(Cause.REWARD_INVALID, f"holds no object of name: number, but {text.strip()[:80]!r}")
    for name, reward in value.items():
        if not isinstance(reward, int | float):
            raise RewardError(Cause.REWARD_INVALID, f"holds {name} = {reward!r:.80}, which is not a number")
    return {name: _number(name, reward) for name, reward in value.items()}


def _number(name: str, value: str | float) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise RewardError(Cause.REWARD_INVALID, f"holds {name} = {str(value)[:80]!r}, which is not a number") from None
    if not math.isfinite(number):
        raise RewardError(Cause.REWARD_INVALID, f"holds {name} = {number}, which is not finite")
    return number
