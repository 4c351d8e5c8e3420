"""What a launch has to do: the shard, what is stored of it, and which trials may be tried."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rolloutgen.index import Index, Shard, select
from rolloutgen.models import Trial
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.store import Scan, Store
from rolloutgen.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Resume is subtraction: owed = planned - done. ``scan`` is the state of RESULTS_DIR when it was read."""

    settings: Settings
    shard: Shard
    scan: Scan

    def attempts_used(self, trial: Trial) -> int:
        """Attempts that are charged to the trial; RETRY_EXHAUSTED forgives those of a trial that has used up all."""
        used = self.scan.attempts_used(trial)
        exhausted = used >= self.settings.attempts_per_trial
        return 0 if exhausted and self.settings.retry_exhausted else used

    def to_try(self) -> Iterator[Trial]:
        """The owed trials that have an attempt left, instance by instance."""
        limit = self.settings.attempts_per_trial
        return (trial for trial in self.scan.owed() if self.attempts_used(trial) < limit)

    @property
    def n_to_try(self) -> int:
        return self.scan.n_owed - self.n_exhausted

    @cached_property
    def n_exhausted(self) -> int:
        """Owed trials that have used up their attempts and get no more."""
        return 0 if self.settings.retry_exhausted else self.scan.n_exhausted(self.settings.attempts_per_trial)

    def task_folders(self) -> set[Path]:
        """The folders in which the tasks of the whole index lie, with their tests and solutions."""
        return {Path(text.rpartition("/")[0]) for text in set(self.shard.index.task_paths.to_pylist())}


def make_plan(settings: Settings, *, repair: bool) -> Plan:
    """Read the index, the instances file and what is stored. Raises FindingsError or StoreError; blocking.

    ``repair`` completes what a kill cut short, for which the lock on RESULTS_DIR must be held.
    """
    shard = select(Index.read(settings.index_file), settings.instances_file)
    scan = Store(ResultsPaths(settings.results_dir)).scan(shard.instances, settings.n_trials, repair=repair)
    return Plan(settings, shard, scan)
