"""What a run will want: trials, and disk for their results, measured on what is stored already where that can be."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutgen.models import Trial
from rolloutgen.paths import ResultsPaths
from rolloutgen.plan import Plan

_SAMPLE: Final = 20
_TRIAL_KB: Final = 400
"""Disk of one trial's results before any is known; long transcripts take more."""
_TRIAL_INODES: Final = 30
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Forecast:
    """Sizes in MiB. ``disk_free_mb`` and ``inodes_free`` are of RESULTS_DIR's file system (inodes None: unlimited)."""

    n_instances: int
    n_trials: int
    n_planned: int
    n_done: int
    n_owed: int
    disk_wanted_mb: int
    disk_free_mb: int
    inodes_wanted: int
    inodes_free: int | None

    def lines(self) -> list[str]:
        inodes = "" if self.inodes_free is None else f", {self.inodes_free} inodes"
        return [
            f"instances: {self.n_instances}, trials of each: {self.n_trials}",
            f"trials: {self.n_planned} planned, {self.n_done} done, {self.n_owed} owed",
            f"disk wanted: {self.disk_wanted_mb} MiB, {self.inodes_wanted} inodes",
            f"disk free: {self.disk_free_mb} MiB{inodes}",
        ]


def forecast(plan: Plan) -> Forecast:
    results = plan.settings.results_dir
    stats = os.statvfs(nearest_existing(results))
    trial_bytes, trial_inodes = _per_trial(plan)
    return Forecast(
        n_instances=len(plan.shard),
        n_trials=plan.settings.n_trials,
        n_planned=plan.scan.n_planned,
        n_done=plan.scan.n_done,
        n_owed=plan.scan.n_owed,
        disk_wanted_mb=-(-plan.n_to_try * trial_bytes // _MIB),
        disk_free_mb=stats.f_bavail * stats.f_frsize // _MIB,
        inodes_wanted=plan.n_to_try * trial_inodes,
        inodes_free=stats.f_favail if stats.f_files else None,
    )


def nearest_existing(path: Path) -> Path:
    """``path`` itself or the nearest parent of it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _per_trial(plan: Plan) -> tuple[int, int]:
    """Bytes and inodes of one trial: the mean of some stored ones, else the first guess."""
    sizes = [_size(folder) for folder in itertools.islice(_stored(plan), _SAMPLE)]
    if not sizes:
        return _TRIAL_KB * 1024, _TRIAL_INODES
    return sum(size for size, _ in sizes) // len(sizes), -(-sum(count for _, count in sizes) // len(sizes))


def _stored(plan: Plan) -> Iterator[Path]:
    """Folders of verdicts, looked for among the first instances only."""
    paths = ResultsPaths(plan.settings.results_dir)
    for instance in itertools.islice(plan.shard.instances, 10 * _SAMPLE):
        folder = paths.verdict(Trial(instance, 0))
        if folder.is_dir():
            yield folder


def _size(folder: Path) -> tuple[int, int]:
    """Bytes on disk and inodes of a tree."""
    total, count = 0, 1
    for name in folder.rglob("*"):
        stat = name.lstat()
        total += stat.st_blocks * 512
        count += 1
    return total, count
