"""What one instance's folder holds: its verdicts, its attempts without one, and what is wrong in it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rolloutgen.outcomes import Result
from rolloutgen.paths import attempt_name, trial_name
from rolloutgen.results.folders import Listing, listing, promote, read_record
from rolloutgen.results.records import InvalidRecordError, Record

type Problem = Literal["torn", "odd", "foreign"]
"""An outcome.json that cannot be read; no folder where one should be; an outcome of another instance or trial."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A planned trial that was tried and has no verdict.

    ``attempts``: the highest attempt number so far; ``charged``: those that used up one of ATTEMPTS_PER_TRIAL (not the
    killed ones, nor shared causes); ``last``: the latest outcome (None: every attempt was killed).
    """

    attempts: int
    charged: int
    last: Record | None


@dataclass(slots=True)
class Results:
    """What is known of one instance's planned trials, by trial number; trials in neither were never tried."""

    done: dict[int, Record] = field(default_factory=dict)
    unfinished: dict[int, Unfinished] = field(default_factory=dict)
    extra_trials: int = 0
    problems: list[tuple[Problem, str]] = field(default_factory=list)

    @property
    def n_pass(self) -> int:
        return sum(record.result is Result.PASS for record in self.done.values())


def read_results(folder: str, instance_id: str, n_trials: int, is_folder: bool, repair: bool) -> Results:
    """Read ``folder`` (``is_folder``: it is one, and no link). ``repair``: complete renames. Raises OSError."""
    if not is_folder:
        return Results(problems=[("odd", folder)])
    return _Reader(folder, instance_id, n_trials, repair).read()


class _Reader:
    """Reads the folder of one instance."""

    def __init__(self, folder: str, instance_id: str, n_trials: int, repair: bool) -> None:
        self.folder = folder
        self.instance_id = instance_id
        self.n_trials = n_trials
        self.repair = repair
        self.odd: frozenset[str] = frozenset()
        self.results = Results()

    def read(self) -> Results:
        found = self._list()
        for number in sorted(found.trials | found.attempts.keys()):
            if number >= self.n_trials:
                self.results.extra_trials += 1
            elif not (number in found.trials and self._verdict(number, trial_name(number))):
                self._read_attempts(number, sorted(found.attempts.get(number, ())), found)
        return self.results

    def _list(self) -> Listing:
        found = listing(self.folder)
        self.odd = frozenset(found.odd)
        self.results.problems.extend(("odd", f"{self.folder}/{name}") for name in found.odd)
        return found

    def _read_attempts(self, number: int, attempts: list[int], found: Listing) -> None:
        """The earliest attempt with a verdict counts, and takes the trial's name; else all are told of."""
        charged, last = 0, None
        for attempt in attempts:
            if self._verdict(number, attempt_name(number, attempt)):
                if self.repair:
                    promote(Path(self.folder), number, attempt)
                return
            record = self.record
            charged += record is not None and record.charged
            last = record or last
        held = number in found.trials
        self.results.unfinished[number] = Unfinished(found.highest(number) + held, charged, last)

    def _verdict(self, number: int, name: str) -> bool:
        """Whether the folder ``name`` holds a verdict, which then counts; ``record`` is what it holds."""
        self.record = self._record(number, name)
        if self.record is None or not self.record.is_verdict:
            return False
        self.results.done[number] = self.record
        return True

    def _record(self, number: int, name: str) -> Record | None:
        if name in self.odd:
            return None
        try:
            record = read_record(f"{self.folder}/{name}")
        except InvalidRecordError as error:
            self.results.problems.append(("torn", f"{self.folder}/{name} ({error})"))
            return None
        if record is not None and (record.instance_id, record.trial) != (self.instance_id, number):
            told = f"{self.folder}/{name} (of {record.instance_id!r}, trial {record.trial})"
            self.results.problems.append(("foreign", told))
            return None
        return record
