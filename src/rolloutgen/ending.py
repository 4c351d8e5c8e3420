"""The end of a launch: tables, the filtered index, and what a person is told last.

Everything comes from the stored outcomes. Blocking.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rolloutgen.exits import Exit
from rolloutgen.index import write_filtered
from rolloutgen.paths import ResultsPaths
from rolloutgen.plan import Plan
from rolloutgen.progress.show import one_line
from rolloutgen.results.scan import Scan
from rolloutgen.results.store import Store
from rolloutgen.results.summary import Totals, selected, write_tables
from rolloutgen.settings import Settings

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Ending:
    """``lines`` are for the end of the log, ``reason`` for its last one (empty after success)."""

    exit_code: Exit
    lines: tuple[str, ...]
    reason: str


def conclude(plan: Plan, *, ran: bool) -> Ending:
    """Every trial was tried: write tables and index. ``ran``: read the outcomes again first. Raises StoreError."""
    settings, paths = plan.settings, ResultsPaths(plan.settings.results_dir)
    scan = _scan(plan) if ran else plan.scan
    totals = write_tables(scan, paths)
    n_selected = write_filtered(plan.shard, selected(scan), settings.output_index)
    lines = (*_totals_lines(totals), *_selected_lines(n_selected, settings), *_paths_lines(settings))
    if not totals.n_missing:
        return Ending(Exit.OK, lines, "")
    return Ending(Exit.INCOMPLETE, lines, _missing(totals))


def break_off(plan: Plan, exit_code: Exit, reason: str) -> Ending:
    """Interrupted or failed: the tables tell how far it came, the index stays as it was. Raises StoreError."""
    settings = plan.settings
    totals = write_tables(_scan(plan), ResultsPaths(settings.results_dir))
    older = f"OUTPUT_INDEX {settings.output_index} is of an earlier launch" if settings.output_index.exists() else ""
    lines = (*_totals_lines(totals), *([older] if older else []), "start the same command again to go on")
    return Ending(exit_code, lines, reason)


def _scan(plan: Plan) -> Scan:
    store = Store(ResultsPaths(plan.settings.results_dir))
    return store.scan(plan.shard.instances, plan.settings.n_trials)


def _missing(totals: Totals) -> str:
    causes = ", ".join(f"{cause} {count}" for cause, count in totals.causes.items())
    return f"{totals.n_missing} of {totals.n_trials} trials without a verdict ({causes})"


def _totals_lines(totals: Totals) -> Iterator[str]:
    rate = "none scored" if totals.pass_rate is None else f"pass rate {totals.pass_rate:.4f}"
    yield (
        f"{totals.n_instances} instances, {totals.n_trials} trials: {totals.n_pass} pass, {totals.n_fail} fail, "
        f"{totals.n_missing} without a verdict; {rate}"
    )
    if totals.flags:
        yield "flags of the verdicts: " + ", ".join(f"{flag} {count}" for flag, count in totals.flags.items())
    if totals.n_missing:
        yield _missing(totals) + "; run again for more attempts, with RETRY_EXHAUSTED=1 where they are used up"
    if totals.incomplete:
        names = ", ".join(one_line(name) for name in totals.incomplete[:_SHOWN])
        more = f" and {len(totals.incomplete) - _SHOWN} more" if len(totals.incomplete) > _SHOWN else ""
        yield f"incomplete, so not selected: {len(totals.incomplete)} instances: {names}{more}"


def _selected_lines(n_selected: int, settings: Settings) -> Iterator[str]:
    """C19, and A13: a filtered index is true at the temperature at which it was measured."""
    yield f"selected: {n_selected} instances with 0 < pass_rate < 1" + ("" if n_selected else ": the index is empty")
    if settings.temperature is None:
        return
    if settings.sampling_passthrough:
        yield (
            "SAMPLING_PASSTHROUGH=1: the filtered index holds for whatever the scaffold asked, "
            "not for training's policy: transcripts tell the parameters of every call"
        )
    elif settings.train_temperature is None:
        yield (
            f"the filtered index holds at TEMPERATURE={settings.temperature:g}, as measured; "
            "TRAIN_TEMPERATURE was not set, so compare it with training's yourself"
        )
    else:
        yield f"the filtered index holds at TEMPERATURE={settings.temperature:g}, as in training"


def _paths_lines(settings: Settings) -> Iterator[str]:
    paths = ResultsPaths(settings.results_dir)
    yield f"results: {paths.root}"
    yield f"summary: {paths.summary_csv}"
    yield f"trials: {paths.trials_csv}"
    yield f"selected index: {settings.output_index}"
