"""What dead launches left on this host is found and removed (A29): processes, control groups, records.

Only what is proven ours: a launch is dead when its launcher (pid, start time, boot) is, and what it started carries its
id. Only launches of this host are judged; results are never touched.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rolloutgen.config import load_config, log_folder
from rolloutgen.errors import FindingsError
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.launches.record import Launch, driver, end, folders, read, read_all
from rolloutgen.paths import LogPaths
from rolloutgen.processes import Process, belongings, boot_id, end_all
from rolloutgen.sandbox.local.cgroups import sweep_cgroups
from rolloutgen.serving.leavings import remove_leavings
from rolloutgen.serving.record import ServerRecord

DYING_SEC: Final = 40.0
"""What a dead launcher left ends by itself within this time: it notices in 5 s, and has 30 s to end."""

_GRACE_SEC: Final = 3.0
_POLL_SEC: Final = 0.2
_ABANDONED_SEC: Final = 3600.0


def cleanup(config: Path | None) -> list[str]:
    """Sweep what all dead launches of this host left, or those of the config's run; says what, a line each.

    Raises FindingsError where the config does not tell its RESULTS_DIR.
    """
    if config is None:
        return sweep(LogPaths(log_folder(), "").launches)
    draft = load_config(config)
    if "RESULTS_DIR" in draft.invalid:
        raise FindingsError(draft.findings)
    return sweep(LogPaths(log_folder(), "").launches, draft.settings.results_dir)


def sweep(launches: Path, results_dir: Path | None = None, dying_sec: float = DYING_SEC) -> list[str]:
    """Remove what dead launches left (of one run only, with ``results_dir``); never touches a live launch.

    Waits up to ``dying_sec`` for what is ending by itself, then kills it; at once, where nobody leads it any more. Says
    what it did, a line each.
    """
    lines: list[str] = []
    for launch in read_all(launches):
        wanted = results_dir is None or launch.results_dir.resolve() == results_dir.resolve()
        if wanted and launch.is_here and not launch.alive():
            lines.extend(end_launch(launch, dying_sec))
    for folder in folders(launches):
        if read(folder) is None and _is_abandoned(folder):
            end(folder)
    return lines


def end_launch(launch: Launch, dying_sec: float) -> list[str]:
    """End all that ``launch`` started, after up to ``dying_sec`` in which it may end by itself; remove its folder.

    The launcher itself is not touched: it is dead, or it is the caller's parent, at its own end.
    """
    lines: list[str] = []
    if launch.launcher.boot_id == boot_id():
        left, survivors = _end_processes(launch, dying_sec)
        lines += [f"{launch.launch_id}: ended process {process.pid}" for process in left]
        lines += [f"{launch.launch_id}: removed {folder}" for folder in sweep_cgroups(launch.launch_id)]
        if survivors:
            pids = ", ".join(str(process.pid) for process in survivors)
            return [*lines, f"{launch.launch_id}: still there: process {pids}; the record is kept"]
    server = ServerRecord.read(launch.folder)
    removed = remove_leavings(launch.launch_id, server.shared if server else ())
    lines += [f"{launch.launch_id}: removed {path}" for path in removed]
    end(launch.folder)
    return [*lines, f"{launch.launch_id}: removed its record"]


def _end_processes(launch: Launch, dying_sec: float) -> tuple[list[Process], list[Process]]:
    """(those that had to be ended, those that are still there)."""
    server, gateway = ServerRecord.read(launch.folder), GatewayRecord.read(launch.folder)
    parts = [driver(launch.folder), gateway.gateway if gateway else None]
    parts += [server.serve, server.vllm] if server else []
    leaders = [part for part in parts if part]
    find = belongings(launch.launch_id, leaders, server.members if server else ())
    deadline = time.monotonic() + dying_sec
    while (left := find()) and time.monotonic() < deadline and _may_end_itself(leaders):
        time.sleep(_POLL_SEC)
    return list(left), asyncio.run(end_all(find, _GRACE_SEC)) if left else []


def _may_end_itself(leaders: Sequence[Process]) -> bool:
    """Whether one lives that ends the others; before the first leads, any step of the launcher may be ending."""
    return not leaders or any(leader.alive() for leader in leaders)


def _is_abandoned(folder: Path) -> bool:
    """Whether a folder without a record is that of a launch which died at its very start."""
    try:
        return time.time() - folder.stat().st_mtime > _ABANDONED_SEC
    except FileNotFoundError:
        return False
