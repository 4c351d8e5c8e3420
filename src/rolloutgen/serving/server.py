"""One vLLM process tree: started in its own session, watched, proven to serve, and ended to the last member."""

import asyncio
import ctypes
import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rolloutgen.errors import RunFailedError
from rolloutgen.masking import masked_words
from rolloutgen.processes import Process, belongings, end_all
from rolloutgen.serving import serverlog
from rolloutgen.serving.leavings import make_temporary_folder, remove_leavings, shared_memory
from rolloutgen.serving.probe import Probe, ProbeError
from rolloutgen.serving.record import ServerRecord

_POLL_SEC: Final = 0.5
_GRACE_SEC: Final = 10.0
_ORPHANS_GRACE_SEC: Final = 2.0
"""Engines without their parent do not answer to TERM."""
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class ServerFailedError(RunFailedError):
    """The server did not start, or died. ``evidence`` holds the lines of its log that show why."""

    def __init__(self, message: str, evidence: Sequence[str] = ()) -> None:
        self.evidence = tuple(evidence)
        super().__init__(message)


def _die_with_parent(parent: int) -> None:
    """Runs in the child before exec: TERM comes when the parent dies, whatever of."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class Server:
    """A server from ``start`` to ``stop``; another one may be started after it for the same launch.

    ``launch`` is the launch's folder: server.json in it is kept true. ``log`` is appended to.
    """

    command: Sequence[str]
    environment: dict[str, str] = field(repr=False)
    launch: Path
    log: Path
    probe: Probe
    record: ServerRecord
    _child: asyncio.subprocess.Process | None = None
    _log_offset: int = 0

    async def start(self) -> None:
        """Start the process. Raises ServerFailedError where that cannot be done."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            stamp = datetime.now(UTC).isoformat(timespec="seconds")
            log.write(f"=== launch {self.launch.name} {stamp}: {shlex.join(masked_words(self.command))}\n".encode())
            log.flush()
            self._log_offset = log.tell()
            parent = os.getpid()
            try:
                make_temporary_folder(self.launch.name)
                self._child = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    start_new_session=True,
                    preexec_fn=lambda: _die_with_parent(parent),
                )
            except OSError as error:
                raise ServerFailedError(f"{self.command[0]} does not start: {error}") from error
        self._note(vllm=Process.of(self._child.pid))

    async def wait_ready(self, timeout_sec: float) -> None:
        """Return when our own child serves our model. Raises ServerFailedError."""
        deadline = time.monotonic() + timeout_sec
        while not await self.probe.healthy():
            self._check_alive()
            if time.monotonic() > deadline:
                message = f"the server was not ready within SERVER_START_TIMEOUT_SEC={timeout_sec:g} s"
                raise ServerFailedError(message, self._lines()[-5:])
            self._look_at_members()
            await asyncio.sleep(_POLL_SEC)
        try:
            await self.probe.check_identity()
            self._check_alive()
            await self.probe.canary(max(deadline - time.monotonic(), 10.0))
        except ProbeError as error:
            await asyncio.sleep(_POLL_SEC)  # a death of the server shows first as a lost connection
            self._check_alive()
            raise ServerFailedError(str(error), self._lines()[-5:]) from error
        self._look_at_members()
        self._note(state="ready", base_url=f"{self.probe.root}/v1")

    async def ended(self) -> None:
        """Wait until the process ends by itself, then raise ServerFailedError with the reason."""
        assert self._child is not None
        await self._child.wait()
        raise self._failure()

    async def stop(self, hurry: asyncio.Event | None = None) -> list[Process]:
        """End the whole session: TERM, after 10 s KILL; engines and workers outlive their parent otherwise.

        Then what they left is removed. Returns those that nothing could end.
        """
        if self._child is None:
            return []
        self._look_at_members()
        grace = _GRACE_SEC if self._child.returncode is None else _ORPHANS_GRACE_SEC
        left = await end_all(self._find(), grace, hurry)
        if self.record.vllm not in left:
            await self._child.wait()
        remove_leavings(self.launch.name, self.record.shared)
        return left

    def fail(self, error: ServerFailedError) -> None:
        """Write the state ``failed``."""
        self._note(state="failed", base_url="", message=str(error), evidence=error.evidence)

    def _note(self, **changes: object) -> None:
        changed = replace(self.record, **changes)  # type: ignore[arg-type]  # names are those of ServerRecord
        if changed != self.record:
            self.record = changed
            changed.write(self.launch)

    def _find(self) -> Callable[[], Sequence[Process]]:
        leaders = [self.record.vllm] if self.record.vllm else []
        return belongings(self.launch.name, leaders, self.record.members, with_marked=False)

    def _look_at_members(self) -> None:
        """Keep in the record what would have to be ended and removed if all of us were killed now."""
        found = self._find()()
        members = sorted({*self.record.members, *found}, key=lambda process: process.pid)
        self._note(members=tuple(members), shared=tuple(sorted({*self.record.shared, *shared_memory(found)})))

    def _check_alive(self) -> None:
        assert self._child is not None
        if self._child.returncode is not None:
            raise self._failure()

    def _lines(self) -> list[str]:
        return serverlog.read_from(self.log, self._log_offset)

    def _failure(self) -> ServerFailedError:
        assert self._child is not None
        lines = self._lines()
        error = serverlog.first_error(lines)
        hint = serverlog.advice(error) or serverlog.advice("\n".join(lines[-100:]))
        parts = [_how_ended(self._child.returncode), error, hint, f"its log: {self.log}"]
        return ServerFailedError("; ".join(filter(None, parts)), serverlog.evidence(lines))


def _how_ended(status: int | None) -> str:
    if status is None or status >= 0:
        return f"the model server ended with status {status}"
    name = signal.Signals(-status).name
    killed = " (where nobody did that, the kernel did: out of memory)" if name == "SIGKILL" else ""
    return f"the model server was ended by {name}{killed}"
