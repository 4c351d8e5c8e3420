"""From RESULTS_DIR to rows: the verdicts of the shard in the order of the index, trial by trial, branch by branch."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rolloutgen.errors import RolloutgenError, StoreError
from rolloutgen.export.columns import columns
from rolloutgen.export.facts import run_facts, trial_facts
from rolloutgen.export.rows import FORMATS, SCHEMA_VERSION, Row, plain_text
from rolloutgen.export.segments import segments
from rolloutgen.export.writers import Kind
from rolloutgen.models import Trial
from rolloutgen.outcomes import Result
from rolloutgen.paths import TRANSCRIPT, ResultsPaths
from rolloutgen.plan import make_plan
from rolloutgen.results.fingerprint import read_run
from rolloutgen.results.folders import read_record
from rolloutgen.results.records import InvalidRecordError, Record
from rolloutgen.settings import Settings
from rolloutgen.transcript import lines
from rolloutgen.transcript.reader import Call, read_calls

_SHOWN: Final = 10


@dataclass(slots=True)
class Corpus:
    """The rows of a run in one format.

    While they are made, ``n_trials`` counts the trials that gave some, and ``left_out`` says why others gave none:
    reason -> folders. ``is_damaged``: a transcript that should be there is missing or cannot be read.
    """

    settings: Settings
    only: str
    format: str
    n_trials: int = 0
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    is_damaged: bool = False

    @property
    def schema(self) -> dict[str, Kind]:
        return columns(self.format, logprobs=self.settings.record_logprobs)

    def rows(self) -> Iterator[Row]:
        """Raises FindingsError, StoreError, and RolloutgenError where there is nothing to export."""
        paths = ResultsPaths(self.settings.results_dir)
        run = read_run(paths.run_json)
        if run is None:
            raise RolloutgenError(f"there is no run in RESULTS_DIR={paths.root}: it holds no {paths.run_json.name}")
        scan = make_plan(self.settings, repair=False).scan
        if not scan.n_done:
            raise RolloutgenError(f"no trial of this shard has a verdict yet in RESULTS_DIR={paths.root}")
        same = {"schema_version": SCHEMA_VERSION, **run_facts(run, paths.run_json)}
        for position, instance in enumerate(scan.instances):
            for number, record in sorted(scan.of(position).done.items()):
                if self.only == "all" or record.result is Result.PASS:
                    folder = _folder(paths, Trial(instance, number), record)
                    yield from self._trial(folder, {**same, **trial_facts(instance, record)})
        if self.left_out and not self.n_trials:
            raise RolloutgenError("; ".join(["nothing to export", *self.notes()]))

    def notes(self) -> Iterator[str]:
        """What people should know of what was left out."""
        for reason, folders in sorted(self.left_out.items()):
            more = f" and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else ""
            yield f"{len(folders)} trials left out, {reason}: {', '.join(folders[:_SHOWN])}{more}"

    def _trial(self, folder: Path, facts: Row) -> Iterator[Row]:
        try:
            start, calls = _read(folder / TRANSCRIPT)
        except _UnusableError as error:
            self.is_damaged = self.is_damaged or error.is_damage
            self.left_out[str(error)].append(str(folder))
            return
        n_rows = 0
        for row in _rows(calls, self.format):
            n_rows += 1
            yield {**facts, "scaffold": plain_text(str(start.get("scaffold") or "")), **row}
        if n_rows:
            self.n_trials += 1
        else:
            self.left_out[_why_none(self.format, start, bool(calls))].append(str(folder))


class _UnusableError(Exception):
    """A transcript gives no row, and why."""

    def __init__(self, why: str, *, is_damage: bool) -> None:
        self.is_damage = is_damage
        super().__init__(why)


def _read(transcript: Path) -> tuple[Mapping[str, Any], list[Call]]:
    """The first line, and the calls."""
    try:
        start = next(lines.read(transcript), {})
        calls = read_calls(transcript)
    except FileNotFoundError:
        raise _UnusableError(f"without {TRANSCRIPT}", is_damage=True) from None
    except (OSError, ValueError) as error:
        raise _UnusableError(f"{TRANSCRIPT} cannot be read ({error})", is_damage=True) from error
    _check(start)
    return start, calls


def _rows(calls: list[Call], format_: str) -> Iterator[Row]:
    joins, make = FORMATS[format_]
    try:
        for segment in segments(calls, joins):
            body = make(segment)
            if body is not None:
                told = {"prefix_break": segment.prefix_break, "finish_reason": segment.leaf.finish_reason or ""}
                yield {"branch": segment.branch, "part": segment.part, **told, **body}
    except ValueError as error:
        raise StoreError(f"a transcript is damaged: {error}") from error


def _check(start: Mapping[str, Any]) -> None:
    version = start.get("schema_version")
    if not isinstance(version, int):
        raise _UnusableError(f"{TRANSCRIPT} has no first line", is_damage=True)
    if start.get("model", "") is None:
        raise _UnusableError("the agent asks no model", is_damage=False)
    if version < lines.SCHEMA_VERSION:
        why = f"{TRANSCRIPT} of schema_version {version}, from before calls were recorded whole"
        raise _UnusableError(why, is_damage=True)


def _why_none(format_: str, start: Mapping[str, Any], called: bool) -> str:
    if not called:
        return "the agent never called the model"
    if format_ == "tokens" and start.get("token_ids") is False:
        return "token ids were not recorded (RECORD_TOKEN_IDS=0)"
    return f"no answered call that the format {format_} can hold"


def _folder(paths: ResultsPaths, trial: Trial, record: Record) -> Path:
    """Where the verdict lies: under the trial's name, unless a kill prevented the rename."""
    folder = paths.verdict(trial)
    try:
        if read_record(str(folder)) == record:
            return folder
    except (InvalidRecordError, OSError):
        pass
    return paths.attempt(trial, record.attempt or 1)
