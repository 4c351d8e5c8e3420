"""Before a launch's processes start, with the lock on RESULTS_DIR held: sweep, preflight, run.json.

Where nothing is owed it ends here, with tables and index.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from rolloutgen import launches
from rolloutgen.config import log_paths
from rolloutgen.config.reading import Draft
from rolloutgen.ending import Ending, conclude
from rolloutgen.errors import RunFailedError
from rolloutgen.exits import Exit
from rolloutgen.paths import ResultsPaths
from rolloutgen.preflight import Report, preflight, what_next
from rolloutgen.preflight.server import current_fingerprint
from rolloutgen.processes import Process
from rolloutgen.results.fingerprint import read_run, write_run
from rolloutgen.settings import Settings


def begin_launch(draft: Draft, config: Path, folder: Path, launcher_pid: int) -> list[str]:
    """Record this launch, and remove what dead launches of the same run left."""
    settings, logs = draft.settings, log_paths(draft.settings)
    launcher = Process.of(launcher_pid)
    if launcher is None:
        raise RunFailedError(f"the launcher, process {launcher_pid}, is gone")
    launches.begin(folder, launcher, settings.results_dir, str(config), logs.exp)
    return launches.sweep(logs.launches, settings.results_dir)


def prepare(draft: Draft, launch_id: str, say: Callable[[Report], None]) -> Ending | None:
    """Check, then make RESULTS_DIR and run.json; None: go on. ``say`` shows the findings.

    Raises FindingsError and StoreError.
    """
    report = asyncio.run(preflight(draft, launch_id, repair=True))
    say(report)
    if report.fatal or report.plan is None:
        return Ending(Exit.USAGE, (), "preflight found what must be mended first")
    next_step = what_next(report.plan)
    if report.plan.n_to_try or report.plan.scan.n_done:
        _identify(draft.settings)
    if next_step is Exit.OK:
        return None
    ending = conclude(report.plan, ran=False)
    return ending if next_step is Exit.INCOMPLETE else Ending(next_step, ending.lines, ending.reason)


def _identify(settings: Settings) -> None:
    """run.json of a new run; preflight has compared that of an old one."""
    paths = ResultsPaths(settings.results_dir)
    paths.root.mkdir(parents=True, exist_ok=True)
    if read_run(paths.run_json) is None:
        write_run(paths.run_json, settings, current_fingerprint(settings))
