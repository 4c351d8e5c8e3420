"""Records of launches: who runs what here, and whether it still lives.

A launch writes its record (``launch.json`` in its folder) before it starts anything, and removes the folder at a clean
end. So a folder whose launcher is dead names everything that may be left; ``sweep`` removes that.
"""

import dataclasses
import json
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rolloutgen.processes import Process
from rolloutgen.results.durable import replace

SCHEMA_VERSION: Final = 1
RECORD: Final = "launch.json"
DRIVER: Final = "driver.json"
ENDING: Final = "ending"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: ``folder`` is its own below logs/.launches, ``launcher`` the process that answers for it."""

    folder: Path
    results_dir: Path
    config: str
    exp: str
    host: str
    launcher: Process
    started_at: str

    @property
    def launch_id(self) -> str:
        return self.folder.name

    @property
    def is_here(self) -> bool:
        """Whether it ran on this host, in this boot or an earlier one: elsewhere a pid means nothing here."""
        return self.host == socket.gethostname()

    @property
    def is_ending(self) -> bool:
        return (self.folder / ENDING).exists()

    def alive(self) -> bool:
        """Whether its launcher runs; only for launches of this host."""
        return self.launcher.alive()


def begin(folder: Path, launcher: Process, results_dir: Path, config: str, exp: str) -> Launch:
    """Write the record of a launch that starts; ``folder`` is made. Raises StoreError or OSError."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    launch = Launch(folder, results_dir, config, exp, socket.gethostname(), launcher, started_at)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "schema_version": SCHEMA_VERSION,
        "launch_id": launch.launch_id,
        "results_dir": str(results_dir),
        "config": config,
        "exp": exp,
        "host": launch.host,
        "launcher": dataclasses.asdict(launcher),
        "started_at": started_at,
    }
    replace(folder / RECORD, json.dumps(record, indent=2).encode())
    return launch


def mark_driver(folder: Path) -> None:
    """Record that the calling process is the launch's driver."""
    replace(folder / DRIVER, json.dumps(dataclasses.asdict(Process.me())).encode())


def driver(folder: Path) -> Process | None:
    """The driver of a launch; None where it has none (yet)."""
    try:
        return Process.read(_json(folder / DRIVER))
    except (KeyError, ValueError):
        return None


def end(folder: Path) -> None:
    """Remove the folder; only when nothing of the launch runs any more."""
    shutil.rmtree(folder, ignore_errors=True)


def read(folder: Path) -> Launch | None:
    """The launch of a folder; None where there is no readable record (yet)."""
    record = _json(folder / RECORD)
    try:
        return Launch(
            folder,
            Path(record["results_dir"]),
            record["config"],
            record["exp"],
            record["host"],
            Process.read(record["launcher"]),
            record["started_at"],
        )
    except (KeyError, ValueError, TypeError):
        return None


def read_all(launches: Path) -> list[Launch]:
    """Every launch that has a record, oldest first (an id begins with its time)."""
    found = (read(folder) for folder in folders(launches))
    return [launch for launch in found if launch is not None]


def folders(launches: Path) -> Iterator[Path]:
    """The folder of every launch, with a record or without, oldest first."""
    if launches.is_dir():
        yield from sorted(folder for folder in launches.iterdir() if folder.is_dir())


def _json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
