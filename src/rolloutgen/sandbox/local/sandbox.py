"""One sandbox, seen from the driver: a socket to its init, and what is known of its end."""

import asyncio
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from rolloutgen.errors import CommandLostError, NoSpaceError, SandboxError, TransportError
from rolloutgen.outcomes import Cause
from rolloutgen.sandbox.base import ExecResult, SandboxReport, SandboxSpec, unrunnable
from rolloutgen.sandbox.local import cgroups, copies, wire
from rolloutgen.sandbox.local.channel import Channel, Request
from rolloutgen.sandbox.local.ground import Ground
from rolloutgen.sandbox.local.streams import Streams
from rolloutgen.sandbox.local.threads import in_thread
from rolloutgen.sandbox.local.zygotes import Zygote

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_KILL_SEC: Final = 10.0
_PING_SEC: Final = 30.0
_STOP_SEC: Final = 3.0


class LocalSandbox:
    """Implements ``Sandbox``; see there for the contract of every method."""

    def __init__(
        self, spec: SandboxSpec, ground: Ground, zygote: Callable[[], Awaitable[Zygote]], on_stop: Callable[[], None]
    ) -> None:
        self._spec = spec
        self._ground = ground
        self._get_zygote = zygote
        self._on_stop = on_stop
        self._zygote: Zygote | None = None
        self._channel: Channel | None = None
        self._pid = 0
        self._known = asyncio.Event()
        self._group = cgroups.Group()
        self._started: asyncio.Future[Mapping[str, object]] | None = None
        self._report = SandboxReport()
        self._stopping: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._channel is not None or self._stopping is not None:
            raise ValueError(f"sandbox {self._spec.name} was started before")
        self._started = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._ground.start_timeout_sec):
                self._channel = await self._ask_for_init()
                details = await self._started
        except TimeoutError:
            await self.stop()
            limit = self._ground.start_timeout_sec
            raise SandboxError(f"{self._what} did not start within {limit:g} s", Cause.SANDBOX_START) from None
        except BaseException:
            await self.stop()
            raise
        self._report = replace(self._report, details=details)

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        timeout_sec: float | None = None,
    ) -> ExecResult:
        _check_command(command)
        message = {
            "op": "exec",
            "text": command,
            "cwd": cwd or self._spec.workdir or self._ground.default_workdir,
            "env": {"PATH": PATH, **self._spec.env, **(env or {})},
            "user": user,
            "timeout_sec": timeout_sec,
        }
        with Streams(self._ground.output_limit) as streams:
            request = await self._alive().request(message, streams.writers)
            streams.close_writers()
            answer = await self._answer(request)
            out, err = await asyncio.gather(streams.out.finish(), streams.err.finish())
        if answer.get("lost"):
            await self.check()
            raise CommandLostError(f"{self._what}: the command's process is gone without an exit status")
        timed_out = bool(answer.get("timed_out"))
        return ExecResult(answer["status"], out[0], err[0], timed_out, truncated=out[1] or err[1])

    async def upload(self, source: Path, target: str) -> None:
        _check_exists(source)
        what = f"upload of {source} to {target} in {self._what}"
        await self._copy("upload", target, what, lambda end: copies.send(end, source))

    async def download(self, source: str, target: Path) -> None:
        what = f"download of {source} from {self._what}"
        with copies.new_spool(target) as spool:
            await self._copy("download", source, what, lambda end: copies.receive(end, spool))
            await in_thread(lambda: copies.extract(spool, target, what), lambda: None)

    async def check(self) -> None:
        request = await self._alive().request({"op": "ping"})
        try:
            async with asyncio.timeout(_PING_SEC):
                await self._answer(request)
        except TimeoutError:
            raise SandboxError(f"{self._what} does not answer") from None

    async def report(self) -> SandboxReport:
        if self._channel is not None and not self._channel.closed.is_set():
            with suppress(SandboxError):
                await self.check()
        self._note_oom()
        return self._report

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    @property
    def _what(self) -> str:
        return f"sandbox {self._spec.name}"

    def _alive(self) -> Channel:
        if self._channel is None:
            raise SandboxError(f"{self._what} is not started")
        if self._channel.closed.is_set() or self._stopping is not None:
            raise SandboxError(f"{self._what}: {self._report.dead or 'stopped'}")
        return self._channel

    async def _ask_for_init(self) -> Channel:
        """Twice, as the helper process may turn out to be gone when it is asked."""
        try:
            return await self._open_channel(await self._get_zygote())
        except SandboxError:
            return await self._open_channel(await self._get_zygote())

    async def _open_channel(self, zygote: Zygote) -> Channel:
        ours, theirs = wire.pair()
        channel = Channel(ours, self._on_message, self._what)
        try:
            with theirs:
                await zygote.start(self._ground.start_request(self._spec), theirs.fileno())
        except BaseException:
            channel.close()
            raise
        self._zygote = zygote
        self._watcher = asyncio.create_task(self._watch(channel, zygote))
        return channel

    def _on_message(self, message: wire.Message) -> None:
        if message["op"] in ("forked", "failed"):
            self._known.set()
        if message["op"] == "forked":
            self._pid = message["pid"]
            self._group = cgroups.Group(message["version"], message["folders"])
        elif message["op"] == "ready":
            self._settle_start(message["details"], None)
        elif message["op"] == "failed":
            cause = Cause.SANDBOX_BUSY if message.get("busy") else Cause.SANDBOX_START
            self._settle_start({}, SandboxError(f"{self._what}: {message['error']}", cause))

    def _settle_start(self, details: Mapping[str, object], error: SandboxError | None) -> None:
        if self._started is None or self._started.done():
            return
        if error is None:
            self._started.set_result(details)
        else:
            self._started.set_exception(error)
            self._started.exception()  # seen: a cancelled start does not wait for it

    async def _watch(self, channel: Channel, zygote: Zygote) -> None:
        """Notice the init's end, and say why."""
        await channel.closed.wait()
        if self._stopping is None:
            self._report = replace(self._report, dead="its init process is gone")
            status = await zygote.ended(self._pid, _STOP_SEC) if self._pid else None
            self._report = replace(self._report, dead=_why(status))
        self._settle_start({}, SandboxError(f"{self._what}: {self._report.dead or 'stopped'}", Cause.SANDBOX_START))

    async def _answer(self, request: Request) -> wire.Message:
        """The answer of the init. Cancelled, it kills the job first, and waits until that is done."""
        try:
            answer = await asyncio.shield(request.answer)
        except asyncio.CancelledError:
            await self._kill(request)
            raise
        if answer.get("disk_full"):
            self._report = replace(self._report, disk_full=True)
        if answer.get("kind") == "LookupError":
            raise ValueError(f"{self._what}: {answer['error']}")
        if answer.get("kind"):
            raise SandboxError(f"{self._what}: {answer['error']}")
        return answer

    async def _kill(self, request: Request) -> None:
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_KILL_SEC):
                await self._alive().send({"op": "kill", "job": request.number})
                await asyncio.shield(request.answer)

    async def _copy(self, direction: str, path: str, what: str, work: Callable[[socket.socket], int]) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                message = {"op": "copy", "direction": direction, "path": path}
                request = await self._alive().request(message, [theirs.fileno()])
            try:
                moved, error = await in_thread(lambda: work(ours), lambda: _shut(ours)), None
            except OSError as failure:
                moved, error = -1, failure
                _shut(ours)
            except BaseException:
                await asyncio.shield(self._kill(request))
                raise
            answer = await self._answer(request)
        if answer.get("missing"):
            raise FileNotFoundError(f"{what}: there is no such file")
        if answer.get("hostile"):
            raise SandboxError(f"{what}: refused: {answer['error']}")
        if answer.get("errno") == errno.ENOSPC:
            raise NoSpaceError(f"{what}: {answer['error']}")
        if answer.get("error") or error is not None or answer.get("bytes") != moved:
            reason = answer.get("error") or error or f"{moved} bytes here, {answer.get('bytes')} there"
            raise TransportError(f"{what}: {reason}") from error

    def _note_oom(self) -> None:
        self._report = replace(self._report, oom=max(self._report.oom, self._group.oom_kills()))

    async def _stop(self) -> None:
        self._note_oom()
        if self._channel is not None:
            await self._wait_until_known(self._channel)
            self._channel.close()
        if self._zygote is not None and self._pid:
            if await self._zygote.ended(self._pid, _STOP_SEC) is None:
                await self._zygote.kill(self._pid)
                await self._zygote.ended(self._pid, _STOP_SEC)
            self._zygote.forget(self._pid)
        for _ in range(100):
            if self._group.remove():
                break
            await asyncio.sleep(0.02)
        self._on_stop()

    async def _wait_until_known(self, channel: Channel) -> None:
        """Where a start was cut short: what is not known yet could not be removed."""
        known, closed = (asyncio.ensure_future(event.wait()) for event in (self._known, channel.closed))
        await asyncio.wait({known, closed}, timeout=_STOP_SEC, return_when=asyncio.FIRST_COMPLETED)
        known.cancel()
        closed.cancel()


def _check_command(command: str) -> None:
    why = unrunnable(command)
    if why:
        raise ValueError(f"the command cannot be run, since {why}; upload a script instead")


def _check_exists(source: Path) -> None:
    if not source.exists():
        raise ValueError(f"{source} does not exist")


def _why(status: int | None) -> str:
    if status is None:
        return "its init process is gone, and so is the process that started it"
    if status < 0:
        return f"its init process was killed from outside by {signal.Signals(-status).name}"
    return f"its init process ended with status {status}"


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
