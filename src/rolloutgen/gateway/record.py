"""gateway.json of a launch: what the launcher, the driver and ``rolloutgen status`` know of the gateway."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from rolloutgen.errors import RunFailedError
from rolloutgen.processes import Process
from rolloutgen.results.durable import replace

FILE: Final = "gateway.json"
SCHEMA_VERSION: Final = 1

State = Literal["starting", "ready", "failed"]


class GatewayFailedError(RunFailedError):
    """The gateway cannot do its work. ``findings`` are those of the canary, a line each."""

    def __init__(self, message: str, findings: Sequence[str] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """One state of the gateway.

    ``base_url`` ends with ``/v1`` and is what sandboxes are given, ``socket`` the Unix socket (0600) on which the
    driver registers attempts. ``message`` says for people why it failed; ``findings`` what the canary saw,
    ``system_first`` that the chat template takes system messages at the beginning only.
    """

    state: State
    gateway: Process
    base_url: str = ""
    socket: str = ""
    message: str = ""
    findings: tuple[str, ...] = ()
    system_first: bool = False
    schema_version: int = field(default=SCHEMA_VERSION)

    def write(self, launch: Path) -> None:
        """Into the launch's folder, whole or not at all. Raises StoreError."""
        replace(launch / FILE, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def read(cls, launch: Path) -> "GatewayRecord | None":
        """None where there is none, or one that cannot be read."""
        try:
            raw = json.loads((launch / FILE).read_text())
            return cls(
                state=raw["state"],
                gateway=Process.read(raw["gateway"]),
                base_url=raw["base_url"],
                socket=raw["socket"],
                message=raw["message"],
                findings=tuple(raw["findings"]),
                system_first=raw.get("system_first", False),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
