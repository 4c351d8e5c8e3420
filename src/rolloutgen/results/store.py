"""Durable results: an attempt begins in a folder of its own and ends with outcome.json, whole or not at all.

All methods block (fsync); the caller runs them in a thread. One Store writes to a RESULTS_DIR at a time (its lock).
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from rolloutgen.errors import StoreError
from rolloutgen.models import Attempt, Instance, Outcome, Trial
from rolloutgen.paths import OUTCOME, TRANSCRIPT, ResultsPaths
from rolloutgen.results.durable import replace, sync_folder
from rolloutgen.results.folders import listing, promote, read_record, set_aside
from rolloutgen.results.records import InvalidRecordError, encode
from rolloutgen.results.scan import Scan, scan

__all__ = ["Scan", "Store"]


class Store:
    """The results below ``paths``; ``run_id`` is written into every outcome."""

    def __init__(self, paths: ResultsPaths, run_id: str = "") -> None:
        self._paths = paths
        self._run_id = run_id

    def scan(self, instances: Sequence[Instance], n_trials: int, *, repair: bool = True) -> Scan:
        """What is done and owed. ``repair=False`` writes nothing: for looks from outside and dry runs."""
        return scan(self._paths, instances, n_trials, repair=repair)

    def begin(self, trial: Trial) -> Attempt:
        """Make the folder of the next attempt. Raises StoreError; also where the trial has its verdict already."""
        folder = self._paths.instance(trial.instance.instance_id)
        try:
            self._make(folder)
            self._free(trial)
            number = listing(str(folder)).highest(trial.number) + 1
            attempt = Attempt(trial, number, self._paths.attempt(trial, number))
            attempt.folder.mkdir()
        except OSError as error:
            raise StoreError(f"an attempt could not begin in {folder}: {error}") from error
        return attempt

    def finish(self, attempt: Attempt, outcome: Outcome) -> None:
        """Write the outcome; a verdict gives the folder the trial's name. Durable on return. Raises StoreError."""
        try:
            _sync_file(attempt.folder / TRANSCRIPT)
            replace(attempt.folder / OUTCOME, encode(attempt, outcome, self._run_id))
            if outcome.is_verdict:
                self._free(attempt.trial)
                promote(attempt.folder.parent, attempt.trial.number, attempt.number)
            else:
                sync_folder(attempt.folder.parent)
        except OSError as error:
            raise StoreError(f"the outcome of {attempt.folder} could not be kept: {error}") from error

    def _make(self, folder: Path) -> None:
        """The instance's folder, durably where it is new."""
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            sync_folder(self._paths.root)

    def _free(self, trial: Trial) -> None:
        """Move aside what holds the trial's name without a verdict (C9); a verdict is never moved."""
        taken = self._paths.verdict(trial)
        if not os.path.lexists(taken):
            return
        with contextlib.suppress(InvalidRecordError):
            record = None if taken.is_symlink() else read_record(str(taken))
            if record is not None and record.is_verdict:
                raise StoreError(f"{taken} holds a verdict already: this trial must not run again")
        set_aside(taken.parent, trial.number)


def _sync_file(path: Path) -> None:
    """Make what was written to ``path`` survive a power cut, where it exists."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())
