"""summary.csv, trials.csv and the totals: derived, rebuilt from the outcomes alone, the same bytes for the same ones.

CSV with the quoting of RFC 4180, UTF-8, a line feed ends a line. Ids are text: ``007``, ``NA`` and ``1e5`` stay so only
in a reader that keeps text, such as ``read_summary`` (C21).
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutgen.paths import ResultsPaths
from rolloutgen.results.durable import replacing
from rolloutgen.results.instance import Results
from rolloutgen.results.records import TIMES, Record
from rolloutgen.results.scan import Scan

SUMMARY_COLUMNS: Final = (
    "instance_id",
    "n_pass",
    "n_fail",
    "pass_rate",
    "n_trials",
    "n_scored",
    "n_error",
    "mean_reward",
    "wilson_low",
    "wilson_high",
    "complete",
)
TRIALS_COLUMNS: Final = (
    "instance_id",
    "trial",
    "outcome",
    "reward",
    "flags",
    "attempts",
    "error",
    "cause",
    "turns",
    *TIMES,
    "task_digest",
)
_Z95: Final = 1.959963984540054
INTERRUPTED: Final = "interrupted"
NOT_RUN: Final = "not_run"
"""Causes of a missing verdict that no outcome.json tells: every attempt was killed; there was none."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What the end of a run reports.

    ``causes``: cause of the latest attempt (or ``interrupted``, ``not_run``) -> trials without a verdict; ``flags`` of
    the verdicts; ``n_mixed``: instances in the band; ``incomplete``: ids with trials missing that are not in the band,
    because no verdict yet contradicts another.
    """

    n_instances: int
    n_trials: int
    n_pass: int
    n_fail: int
    n_mixed: int
    causes: Mapping[str, int]
    flags: Mapping[str, int]
    incomplete: tuple[str, ...]

    @property
    def n_missing(self) -> int:
        """Planned trials without a verdict."""
        return self.n_trials - self.n_pass - self.n_fail

    @property
    def pass_rate(self) -> float | None:
        """Over all scored trials; None: there is none."""
        scored = self.n_pass + self.n_fail
        return self.n_pass / scored if scored else None


def write_tables(scan: Scan, paths: ResultsPaths) -> Totals:
    """Write summary.csv and trials.csv, each whole or not at all. Raises StoreError."""
    _write(paths.summary_csv, scan, SUMMARY_COLUMNS, _summary_rows(scan))
    _write(paths.trials_csv, scan, TRIALS_COLUMNS, _trial_rows(scan))
    return totals(scan)


def selected(scan: Scan) -> set[str]:
    """Ids of the mixed instances: one pass and one fail at least, which no missing trial can undo."""
    return {scan.instances[p].instance_id for p, found in scan.results.items() if _is_mixed(found)}


def totals(scan: Scan) -> Totals:
    causes: Counter[str] = Counter()
    flags: Counter[str] = Counter()
    for found in scan.results.values():
        causes.update(u.last.cause if u.last else INTERRUPTED for u in found.unfinished.values())
        flags.update(flag for record in found.done.values() for flag in record.flags.split())
    not_run = scan.n_owed - causes.total()
    if not_run:
        causes[NOT_RUN] = not_run
    return Totals(
        n_instances=len(scan.instances),
        n_trials=scan.n_planned,
        n_pass=scan.n_pass,
        n_fail=scan.n_fail,
        n_mixed=sum(map(_is_mixed, scan.results.values())),
        causes=dict(sorted(causes.items())),
        flags=dict(sorted(flags.items())),
        incomplete=tuple(scan.instances[p].instance_id for p in scan.owed_positions() if not _is_mixed(scan.of(p))),
    )


def read_summary(path: Path) -> list[dict[str, str]]:
    """The rows of a summary.csv (or trials.csv), every value as its text."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def wilson(n_pass: int, n_scored: int) -> tuple[float, float]:
    """The 95 % confidence interval of a pass rate by Wilson's score; ``n_scored`` is over 0."""
    z2 = _Z95 * _Z95 / n_scored
    rate = n_pass / n_scored
    centre = (rate + z2 / 2) / (1 + z2)
    half = _Z95 * math.sqrt(rate * (1 - rate) / n_scored + z2 / (4 * n_scored)) / (1 + z2)
    # at both ends the bound is exact, and rounding would show
    return (centre - half if n_pass else 0.0), (centre + half if n_pass < n_scored else 1.0)


def _is_mixed(found: Results) -> bool:
    return 0 < found.n_pass < len(found.done)


def _summary_rows(scan: Scan) -> Iterator[Sequence[object]]:
    for position, instance in enumerate(scan.instances):
        found = scan.of(position)
        n_pass, n_scored = found.n_pass, len(found.done)
        counts = (n_pass, n_scored - n_pass, _number(n_pass / n_scored if n_scored else None))
        missing = scan.n_trials - n_scored
        low, high = wilson(n_pass, n_scored) if n_scored else (None, None)
        measures = (_number(_mean(found.done.values())), _number(low), _number(high))
        complete = "false" if missing else "true"
        yield (instance.instance_id, *counts, scan.n_trials, n_scored, missing, *measures, complete)


def _mean(records: Iterable[Record]) -> float | None:
    rewards = [record.reward for record in records if record.reward is not None]
    return math.fsum(rewards) / len(rewards) if rewards else None


def _number(value: float | None) -> str:
    """Ten digits: 0.5, 1, 0.3333333333; empty for None."""
    return "" if value is None else f"{value:.10g}"


def _trial_rows(scan: Scan) -> Iterator[Sequence[object]]:
    for position, instance in enumerate(scan.instances):
        found = scan.of(position)
        for number in range(scan.n_trials):
            yield (instance.instance_id, number, *_trial(found, number))


def _trial(found: Results, number: int) -> Sequence[object]:
    """The columns of one trial after its number; the outcome of one that never ended is empty."""
    done, unfinished = found.done.get(number), found.unfinished.get(number)
    record = done or (unfinished.last if unfinished else None)
    attempts = (done.attempt or 1) if done else unfinished.attempts if unfinished else 0
    if record is None:
        return ("", "", "", attempts, "", INTERRUPTED if attempts else NOT_RUN, *[""] * (len(TIMES) + 2))
    facts = (str(record.result), record.reward, record.flags, attempts, record.error, record.cause, record.turns)
    return (*facts, *record.times, record.task_digest)


def _write(path: Path, scan: Scan, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    # the csv module leaves a lone carriage return bare where it does not end lines, and readers take it for an end
    bare = any("\r" in instance.instance_id for instance in scan.instances)
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL)
        writer.writerow(columns)
        writer.writerows(rows)
        text.detach()
