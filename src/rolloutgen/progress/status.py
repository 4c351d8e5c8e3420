"""The state of a run from outside: while it runs, after its end, after a kill, before it ever started. Reads only."""

import json
from collections.abc import Iterator
from pathlib import Path

from rolloutgen import launches
from rolloutgen.config import log_paths
from rolloutgen.gateway import client as gateway
from rolloutgen.launches import Launch
from rolloutgen.paths import ResultsPaths
from rolloutgen.plan import Plan, make_plan
from rolloutgen.processes import Process
from rolloutgen.progress.show import PROGRESS
from rolloutgen.progress.spent import shares_line
from rolloutgen.progress.tally import Snapshot
from rolloutgen.results.summary import totals
from rolloutgen.serving import ServerRecord
from rolloutgen.settings import Settings


def status_lines(settings: Settings) -> list[str]:
    """The live numbers of a running driver, else what the stored outcomes say. Raises FindingsError, StoreError."""
    live, dead = _launches(settings)
    lines = [line for launch in live for line in _running(launch)] or list(_setting_up(settings))
    if not lines:
        lines = [*_at_rest(make_plan(settings, repair=False)), *(_left(launch) for launch in dead)]
    return [*lines, f"results: {settings.results_dir}", f"log: {log_paths(settings).log}"]


def _launches(settings: Settings) -> tuple[list[Launch], list[Launch]]:
    """(live, dead) launches of this run; of another host only what its record says, taken as live."""
    ours = [
        launch
        for launch in launches.read_all(log_paths(settings).launches)
        if launch.results_dir.resolve() == settings.results_dir.resolve()
    ]
    live = [launch for launch in ours if not launch.is_here or launch.alive()]
    return live, [launch for launch in ours if launch not in live]


def _setting_up(settings: Settings) -> Iterator[str]:
    """The launch that holds the lock (scripts/lib/lock.sh) before it has a record: it makes what is missing."""
    try:
        lock = ResultsPaths(settings.results_dir).lock.read_text(encoding="utf-8", errors="replace")
        owner = dict(line.split("=", 1) for line in lock.splitlines())
        if Process.read(owner).alive():
            yield f"setting up: launch {owner['launch']}, process {owner['pid']}, since {owner['since']}"
    except (OSError, KeyError, ValueError):
        return


def _running(launch: Launch) -> Iterator[str]:
    here = "" if launch.is_here else f" on {launch.host}"
    phase = "ending" if launch.is_ending else "running"
    yield f"{phase}: launch {launch.launch_id}{here}, process {launch.launcher.pid}, since {launch.started_at}"
    snapshot = _snapshot(launch.folder / PROGRESS)
    if snapshot is not None:
        yield f"{snapshot.line()} (at {snapshot.at})"
        yield from filter(None, [shares_line(snapshot.spent), _model(launch)])
        return
    server = ServerRecord.read(launch.folder)
    yield "checking and planning" if server is None else f"model server: {server.state}"


def _model(launch: Launch) -> str:
    """What the gateway says; empty where none answers from here."""
    told = gateway.status(launch.folder) if launch.is_here else None
    return told.line() if told is not None else ""


def _snapshot(file: Path) -> Snapshot | None:
    """None where there is none, or one that cannot be read."""
    try:
        return Snapshot.from_json(json.loads(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _left(launch: Launch) -> str:
    return f"launch {launch.launch_id} was killed; the next one, or cleanup_before_run.sh, removes what it left"


def _at_rest(plan: Plan) -> Iterator[str]:
    """From the stored outcomes alone."""
    found = totals(plan.scan)
    n_done = found.n_pass + found.n_fail
    if not ResultsPaths(plan.settings.results_dir).run_json.exists():
        state = f"run.json is missing: nothing says what {n_done} verdicts measured" if n_done else "never started"
        yield f"{state}: {found.n_instances} instances, {found.n_trials} trials planned"
        return
    state = "ended, every trial has a verdict" if not found.n_missing else "not running"
    yield f"{state}: {n_done}/{found.n_trials} trials done ({found.n_pass} pass, {found.n_fail} fail)"
    if found.n_missing:
        causes = ", ".join(f"{cause} {count}" for cause, count in found.causes.items())
        yield f"{found.n_missing} trials without a verdict: {causes}"
    yield f"{found.n_mixed} of {found.n_instances} instances with 0 < pass_rate < 1"
