"""What an existing RESULTS_DIR says about a run that would go on in it: run.json, and the tasks that were scored."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from rolloutgen.models import Instance
from rolloutgen.plan import Plan
from rolloutgen.results.fingerprint import task_digest

_AT_ONCE: Final = 16
_FINISHED_MAX: Final = 5_000
"""So many finished tasks are compared with what was scored; reading more would hold up every launch."""


@dataclass(frozen=True, slots=True)
class Changed:
    """``ids`` of instances whose task is another one than when trials of them were scored."""

    ids: tuple[str, ...]
    n_compared: int
    n_not_compared: int


def changed_tasks(plan: Plan) -> Changed:
    """Compare the tasks of instances with verdicts; blocking.

    Those with trials owed always; the finished ones unless they are very many. A folder that is gone is no change: a
    finished task is not needed any more, and of an owed one another check tells.
    """
    partly, finished = _scored(plan)
    skipped = len(finished) if len(finished) > _FINISHED_MAX else 0
    compared = partly if skipped else partly + finished
    with ThreadPoolExecutor(_AT_ONCE, "digests") as executor:
        same = list(executor.map(_is_same, compared))
    ids = tuple(instance.instance_id for (instance, _), is_same in zip(compared, same, strict=True) if not is_same)
    return Changed(ids, len(compared), skipped)


type _Scored = tuple[Instance, frozenset[str]]


def _scored(plan: Plan) -> tuple[list[_Scored], list[_Scored]]:
    """Instances with the digests of the tasks that their verdicts come from: (partly done, finished)."""
    partly: list[_Scored] = []
    finished: list[_Scored] = []
    for position, digests in _digests(plan):
        n_done = len(plan.scan.of(position).done)
        (finished if n_done == plan.scan.n_trials else partly).append((plan.shard.instances[position], digests))
    return partly, finished


def _digests(plan: Plan) -> Iterator[tuple[int, frozenset[str]]]:
    for position, results in plan.scan.results.items():
        digests = frozenset(record.task_digest for record in results.done.values() if record.task_digest)
        if digests:
            yield position, digests


def _is_same(scored: _Scored) -> bool:
    instance, digests = scored
    return not instance.task_path.is_dir() or digests == {task_digest(instance.task_path)}
