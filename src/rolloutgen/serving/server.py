"""One vLLM process tree: started in its own session, watched, proven to serve, and ended to the last member."""

import asyncio
import contextlib
import ctypes
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from rolloutgen.errors import RunFailedError, StoreError
from rolloutgen.masking import masked_words
from rolloutgen.processes import Process, belongings, end_all
from rolloutgen.serving import serverlog
from rolloutgen.serving.leavings import make_temporary_folder, remove_servers_leavings, shared_memory
from rolloutgen.serving.probe import Probe, ProbeError
from rolloutgen.serving.record import ServerRecord

_POLL_SEC: Final = 0.5
_HEALTH_SEC: Final = 2.0
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
    """A server from ``start`` to ``stop``; then another one may be started.

    ``launch`` is the launch's folder: server.json in it is kept true. ``log`` is appended to.
    """

    launch: Path
    log: Path
    record: ServerRecord
    _probe: Probe | None = None
    _child: asyncio.subprocess.Process | None = None
    _log_offset: int = 0

    async def start(self, command: Sequence[str], environment: Mapping[str, str], probe: Probe, seed: int) -> None:
        """Start the process. Raises ServerFailedError where that cannot be done."""
        self._probe = probe
        self.note(seed=seed, vllm=None, members=(), shared=())
        try:
            make_temporary_folder(self.launch.name)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._child = await self._spawn(command, environment, log)
        except OSError as error:
            raise ServerFailedError(f"{command[0]} does not start: {error}") from error
        self.note(vllm=Process.of(self._child.pid))

    async def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], log: BinaryIO
    ) -> asyncio.subprocess.Process:
        stamp, parent = datetime.now(UTC).isoformat(timespec="seconds"), os.getpid()
        log.write(f"=== launch {self.launch.name} {stamp}: {shlex.join(masked_words(command))}\n".encode())
        log.flush()
        self._log_offset = log.tell()
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: _die_with_parent(parent),
        )

    async def wait_ready(self, timeout_sec: float) -> None:
        """Return when our own child serves our model. Raises ServerFailedError."""
        assert self._probe is not None
        deadline = time.monotonic() + timeout_sec
        while not await self._probe.healthy():
            self._check_alive()
            if time.monotonic() > deadline:
                message = f"the server was not ready within SERVER_START_TIMEOUT_SEC={timeout_sec:g} s"
                raise ServerFailedError(message, self._lines()[-5:])
            self._look_at_members()
            await asyncio.sleep(_POLL_SEC)
        try:
            await self._probe.check_identity()
            self._check_alive()
            await self._probe.canary(max(deadline - time.monotonic(), 10.0))
        except ProbeError as error:
            await asyncio.sleep(_POLL_SEC)  # a death of the server shows first as a lost connection
            self._check_alive()
            raise ServerFailedError(str(error), self._lines()[-5:]) from error
        self._look_at_members()
        self.note(state="ready", base_url=f"{self._probe.root}/v1", message="", evidence=())

    async def ended(self) -> NoReturn:
        """Wait until the process ends by itself, then raise ServerFailedError with the reason."""
        assert self._child is not None
        await self._child.wait()
        raise self._failure()

    async def engine_died(self) -> NoReturn:
        """Wait until the server says that its engine is dead, then raise ServerFailedError.

        vLLM ends by itself then, but not at once, and not with VLLM_KEEP_ALIVE_ON_ENGINE_DEATH.
        """
        assert self._probe is not None
        while not await self._probe.engine_is_dead():  # noqa: ASYNC110  # it must be asked
            await asyncio.sleep(_HEALTH_SEC)
        raise self._failure()

    async def stop(self, hurry: asyncio.Event | None = None) -> list[Process]:
        """End the whole session: TERM, after 10 s KILL; engines and workers outlive their parent otherwise.

        Then what they left is removed. Returns those that nothing could end: they may be tried again.
        """
        left: list[Process] = []
        if self._child is not None:
            with contextlib.suppress(StoreError):  # a full disk must not keep anything alive
                self._look_at_members()
            grace = _GRACE_SEC if self._child.returncode is None else _ORPHANS_GRACE_SEC
            left = await end_all(self._find(), grace, hurry)
            if self.record.vllm not in left:
                await self._child.wait()
        if not left:
            self._child = None
        remove_servers_leavings(self.launch.name, self.record.shared)
        return left

    def note(self, **changes: object) -> None:
        """Change the record, here and in server.json. Raises StoreError."""
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
        self.note(members=tuple(members), shared=tuple(sorted({*self.record.shared, *shared_memory(found)})))

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
    if status is None:
        return "the model server's engine died"
    if status >= 0:
        return f"the model server ended with status {status}"
    name = signal.Signals(-status).name
    killed = " (where nobody did that, the kernel did: out of memory)" if name == "SIGKILL" else ""
    return f"the model server was ended by {name}{killed}"
