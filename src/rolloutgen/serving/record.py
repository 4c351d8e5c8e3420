"""server.json of a launch: what the launcher, the driver and later launches know of the model server."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from rolloutgen.processes import Process
from rolloutgen.results.durable import replace
from rolloutgen.serving.leavings import Shared

FILE: Final = "server.json"
SCHEMA_VERSION: Final = 1

State = Literal["starting", "ready", "restarting", "failed"]


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One state of the server: starting, then ready and restarting in turns, until it has failed for good.

    ``base_url`` ends with ``/v1``; it is empty while no server is ready, and may change with a restart. ``message``
    says for people why it is restarted or has failed, ``evidence`` holds the lines of its log that show it.
    ``restarts`` counts those of this launch, ``seed`` is that of the latest start. ``vllm`` leads a session and a
    process group of its own; ``members`` are those seen in it so far, ``shared`` the shared memory they had.
    """

    state: State
    serve: Process
    model_name: str
    base_url: str = ""
    message: str = ""
    evidence: tuple[str, ...] = ()
    seed: int | None = None
    restarts: int = 0
    vllm: Process | None = None
    members: tuple[Process, ...] = ()
    shared: tuple[Shared, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION)

    def write(self, launch: Path) -> None:
        """Into the launch's folder, whole or not at all. Raises StoreError."""
        replace(launch / FILE, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def read(cls, launch: Path) -> "ServerRecord | None":
        """None where there is none, or one that cannot be read."""
        try:
            raw = json.loads((launch / FILE).read_text())
            return cls(
                state=raw["state"],
                serve=Process.read(raw["serve"]),
                model_name=raw["model_name"],
                base_url=raw["base_url"],
                message=raw["message"],
                evidence=tuple(raw["evidence"]),
                seed=raw["seed"],
                restarts=int(raw.get("restarts", 0)),
                vllm=Process.read(raw["vllm"]) if raw["vllm"] else None,
                members=tuple(map(Process.read, raw["members"])),
                shared=tuple((str(path), int(inode)) for path, inode in raw["shared"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
