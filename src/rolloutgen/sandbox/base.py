"""The contract between the engine and a sandbox. Backends implement it; nothing here knows one.

All paths inside a sandbox are absolute POSIX strings. All methods are coroutines on one event loop, safe to cancel, and
raise only ``SandboxError`` (the machine), ``TransportError`` (the way to it; ``CommandLostError`` where the machine is
healthy and just the command is gone) and ``ValueError`` (the caller's mistake). Code in a sandbox is hostile: whatever
comes out of it (sizes, names, tar members) is checked before it touches this machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from rolloutgen.errors import Finding

COMMAND_MAX_BYTES: Final = 128 * 1024 - 1
"""The kernel's limit of one argument."""


def unrunnable(command: str) -> str:
    """Why no sandbox can run ``command``, whatever it says (empty: one can)."""
    if "\0" in command:
        return "it holds a NUL"
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        return "it is not Unicode text"
    return "" if size <= COMMAND_MAX_BYTES else f"it is longer than {COMMAND_MAX_BYTES} bytes"


class Network(StrEnum):
    """What a sandbox may reach, from strict to open."""

    NONE = "none"
    MODEL_ONLY = "model-only"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What one attempt asks of its machine.

    ``name`` is unique among all attempts of all runs (letters, digits, ``-``); ``image`` the task's docker_image
    (None: it names none); ``workdir`` the working directory, made where missing (None: the image's own); ``cpus`` in
    cores, ``memory_mb`` and ``storage_mb`` in MiB (None: no limit asked for); ``env`` holds for every exec.
    """

    name: str
    image: str | None
    workdir: str | None
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    network: Network = Network.OPEN
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command left: its true exit status (128+n: killed by signal n), never a guess.

    ``timed_out`` says that the time limit ended it (its whole process tree was killed; exit_status is then 124).
    ``truncated`` says that output was over EXEC_OUTPUT_MAX_MB: head and tail are kept, with a line between.
    """

    exit_status: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """The backend's own evidence, valid at any time between start and stop.

    ``oom`` counts processes that the sandbox's own memory limit killed; ``disk_full``: its own disk limit was met;
    ``dead`` why it cannot run commands any more (empty: it can); ``own_fault`` that it died of such a limit of its own.
    ``lost_sec`` seconds in which it could not be reached for reasons of ours; ``details`` evidence for people.
    """

    oom: int = 0
    disk_full: bool = False
    dead: str = ""
    own_fault: bool = False
    lost_sec: float = 0.0
    details: Mapping[str, object] = field(default_factory=dict)


class Sandbox(Protocol):
    """One machine, from ``start`` to ``stop``."""

    async def start(self) -> None:
        """Start it; ready for ``exec`` on return. Raises SandboxError whose cause says whether it is shared."""

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        timeout_sec: float | None = None,
    ) -> ExecResult:
        """Run ``bash -c command`` (``sh`` where there is no bash) in ``cwd`` (default: the spec's workdir).

        Cancelling the call kills the command's whole process tree. stdin is empty.
        Raises ValueError for a command that is ``unrunnable``.
        """

    async def upload(self, source: Path, target: str) -> None:
        """Copy the file ``source`` to the path ``target``, or the contents of the folder ``source`` into ``target``.

        Parents are made; modes are kept; files belong to root. Raises NoSpaceError where its disk is full.
        """

    async def download(self, source: str, target: Path) -> None:
        """Copy a file to ``target``, or the contents of a folder into it. Raises FileNotFoundError where it is missing.

        Members are checked before anything is written here: no absolute paths, no ``..``, no devices, size and count
        limits; a violation is a SandboxError. Symbolic links that lead outside are left out.
        """

    async def check(self) -> None:
        """Raise SandboxError unless this is still the very machine that was started (called before grading, C5)."""

    async def report(self) -> SandboxReport:
        """The evidence so far; never raises."""

    async def stop(self) -> None:
        """Remove it and all that ran in it. Idempotent; finishes its work even when the caller is cancelled."""


class SandboxBackend(Protocol):
    """The factory of a run's sandboxes; one a driver."""

    async def open(self) -> None:
        """Prepare what the sandboxes of a run share."""

    def create(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox for ``spec``, not started yet."""

    async def check(self, images: Sequence[str | None]) -> Sequence[Finding]:
        """Preflight: is the backend usable here, and for these images? Starts a probe sandbox and removes it."""

    async def close(self) -> None:
        """Remove every sandbox that is left, and what they shared. Idempotent."""
