"""Small indexes and results for tests, made of the real parts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rolloutgen.models import Instance, Outcome, Times, Trial
from rolloutgen.outcomes import Cause, Result
from rolloutgen.results.store import Store

TIMES = Times("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", 1.5, 50.0, 5.25)


def row(instance_id: str, task_path: str = "", **extra: Any) -> dict[str, Any]:
    """One row as training's index has it; the task path is relative unless told otherwise."""
    path = task_path or f"tasks/{instance_id}"
    return {
        "prompt": [{"role": "user", "content": path}],
        "reward_model": {"style": "rule", "ground_truth": None},
        "extra_info": {"harbor_task_path": path, "instance_id": instance_id, "data_source": "harbor"},
        **extra,
    }


def write_index(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema | None = None, **options: Any) -> Path:
    default = pa.schema(
        [
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([(n, pa.string()) for n in ("harbor_task_path", "instance_id", "data_source")])),
        ]
    )
    pq.write_table(pa.Table.from_pylist(list(rows), schema or default), path, **options)
    return path


def instances(ids: Iterable[str]) -> list[Instance]:
    return [Instance(name, Path("/tasks") / name.encode().hex()) for name in ids]


def verdict(passed: bool, **changes: Any) -> Outcome:
    return Outcome(Result.PASS if passed else Result.FAIL, TIMES, "digest", **{"reward": float(passed), **changes})


def error(cause: Cause = Cause.TRANSPORT) -> Outcome:
    return Outcome(Result.ERROR, TIMES, "digest", cause=cause, message="lost on the way")


def play(store: Store, trial: Trial, *outcomes: Outcome) -> None:
    """One attempt after the other."""
    for outcome in outcomes:
        store.finish(store.begin(trial), outcome)


def fill(store: Store, shard: Sequence[Instance], marks: Sequence[str]) -> None:
    """A word an instance, a letter a trial: p(ass), f(ail), e(rror), k(illed), and ``-`` for one never tried."""
    for instance, word in zip(shard, marks, strict=True):
        for number, mark in enumerate(word):
            trial = Trial(instance, number)
            if mark == "k":
                store.begin(trial)
            elif mark != "-":
                play(store, trial, error() if mark == "e" else verdict(mark == "p"))
