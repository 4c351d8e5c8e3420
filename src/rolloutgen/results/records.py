"""outcome.json: what stands in it, how it is written from plain types, and which of it is read back.

A reader trusts the stable fields alone (schema_version, instance_id, trial, result, reward); every other field may be
missing or unknown, and a record is not run again for that (C13).
"""

import base64
import datetime as dt
import enum
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from sys import intern
from typing import Any, Final, NamedTuple

import orjson

from rolloutgen.errors import StoreError
from rolloutgen.models import SCHEMA_VERSION, Attempt, Outcome
from rolloutgen.outcomes import Result

_RESULTS: Final = {str(result): result for result in Result}


class InvalidRecordError(ValueError):
    """The bytes are no outcome: torn, not JSON, or without the stable fields."""


class Record(NamedTuple):
    """What is kept of one outcome.json; optional fields are None (or empty) where the file lacks them.

    A tuple, since a scan makes one for every trial: built in a fifth of a frozen dataclass's time.
    """

    instance_id: str
    trial: int
    result: Result
    reward: float | None
    attempt: int | None
    cause: str
    error: str
    charged: bool
    flags: str
    turns: int | None
    task_digest: str
    times: tuple[object, ...]

    @property
    def is_verdict(self) -> bool:
        return self.result is not Result.ERROR


TIMES: Final = (
    "started_at",
    "finished_at",
    "sandbox_sec",
    "agent_sec",
    "verifier_sec",
    "lost_sec",
    "model_sec",
    "held_sec",
    "queued_sec",
)
"""The order of ``Record.times``."""


def encode(attempt: Attempt, outcome: Outcome, run_id: str) -> bytes:
    """The bytes of outcome.json. Raises StoreError where ``outcome`` holds what has no plain form."""
    record = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "instance_id": attempt.trial.instance.instance_id,
        "trial": attempt.trial.number,
        "attempt": attempt.number,
        "result": outcome.result,
        "reward": outcome.reward,
        "rewards": outcome.rewards,
        "cause": outcome.cause,
        "error": outcome.kind,
        "charged": outcome.charged,
        "message": outcome.message,
        "flags": outcome.flags,
        "turns": outcome.turns,
        "times": asdict(outcome.times),
        "task_digest": outcome.task_digest,
        "details": outcome.details,
    }
    return orjson.dumps(plain(record), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decode(data: bytes) -> Record:
    """Raises InvalidRecordError unless all stable fields are there."""
    try:
        raw = orjson.loads(data)
        result = _RESULTS[raw["result"]]
        reward, number, instance_id = raw["reward"], raw["trial"], raw["instance_id"]
        version = raw["schema_version"]
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidRecordError(f"not an outcome: {error!r}") from None
    if not (isinstance(instance_id, str) and type(number) is int and type(version) is int):
        raise InvalidRecordError("instance_id, trial and schema_version are not what they should be")
    if not (reward is None or (isinstance(reward, int | float) and not isinstance(reward, bool))):
        raise InvalidRecordError(f"reward is not a number: {reward!r}")
    return _record(raw, instance_id, number, result, None if reward is None else float(reward))


def _record(raw: dict[str, Any], instance_id: str, number: int, result: Result, reward: float | None) -> Record:
    get = raw.get
    attempt, flags, turns, times = get("attempt"), get("flags"), get("turns"), get("times")
    times = times if isinstance(times, dict) else {}
    return Record(
        instance_id,
        number,
        result,
        reward,
        attempt if isinstance(attempt, int) else None,
        intern(str(get("cause") or "")),
        intern(str(get("error") or "")),
        get("charged") is not False,
        intern(" ".join(map(str, flags))) if isinstance(flags, list) else "",
        turns if isinstance(turns, int) else None,
        intern(str(get("task_digest") or "")),
        tuple(map(times.get, TIMES)),
    )


def plain(value: object) -> Any:
    """``value`` in JSON's own types (C14). Raises StoreError where it has no such form.

    Numbers, arrays and timestamps of numpy and pandas become those of Python; bytes their base64; times ISO 8601;
    numbers that JSON lacks (NaN, infinities, over 64 bits) their text; text that UTF-8 lacks gets escapes.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return _plain_collection(value)


def _plain_collection(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, PurePath):
        return plain(str(value))
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    return _plain_foreign(value)


def _plain_foreign(value: object) -> Any:
    """numpy scalars and arrays know their plain form, and need no import here."""
    if type(value).__name__ in ("datetime64", "timedelta64"):
        return str(value)
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise StoreError(f"an outcome holds a value without a plain form: {type(value).__name__} {value!r:.200}")
    return plain(tolist())
